"use strict";
// Interactive parts of the page: tooltips, copy buttons, and navigation of the timeline.
// Nothing here is needed to understand the page; everything works by keys too.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const SVG = "http://www.w3.org/2000/svg";

  // --- numbers in words, as the rest of the page has them -----------------------------------------------------------
  const GAP = "\u00a0";
  const digits = (value, num) => {
    const rounded = Math.abs(Number(value.toPrecision(num)));  // 99.97 is 100, and not 100.0
    const size = rounded >= 1 ? String(Math.trunc(rounded)).length : 0;
    if (size >= num) return Math.round(value).toLocaleString("en-US");
    const text = size ? value.toFixed(num - size) : String(Number(value.toPrecision(num)));
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  };
  const duration = (seconds) => {
    const size = Math.abs(seconds);
    if (size >= 120) return moment(seconds, 1);
    if (!size) return "0" + GAP + "s";
    for (const [unit, factor] of [["s", 1], ["ms", 1e3]])
      if (size * factor >= 0.9995) return digits(seconds * factor, 3) + GAP + unit;
    return digits(seconds * 1e6, 3) + GAP + "µs";
  };
  const moment = (at, step, high = at) => {
    if (step < 1) {
      const [factor, unit] = high < 1 ? [1e3, "ms"] : [1, "s"];
      const places = Math.max(0, Math.ceil(-Math.log10(step * factor) - 1e-9));
      return (at * factor).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }) + GAP + unit;
    }
    if (high < 120) return Math.round(at) + GAP + "s";
    const whole = Math.round(at), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
    const parts = [[hours, "h"], [minutes, "min"], [hours ? 0 : rest, "s"]].filter(([value]) => value);
    return parts.map(([value, unit]) => value + GAP + unit).join(GAP) || "0" + GAP + "s";
  };
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const timeStep = (raw) => {
    if (raw > 1) return TIMES.find((one) => one >= raw) || 86400 * Math.ceil(raw / 86400);
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 5, 10].find((one) => one * power >= raw * (1 - 1e-9));
  };

  // --- the tip ------------------------------------------------------------------------------------------------------
  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const room = document.documentElement.clientWidth;
    tip.style.left = clamp(x + 14, 8, Math.max(8, room - tip.offsetWidth - 8)) + scrollX + "px";
    const above = y - tip.offsetHeight - 12;
    tip.style.top = (above > 4 ? above : y + 18) + scrollY + "px";
  };
  const hide = () => { tip.hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // the browser's own tips would come on top of ours
  const silence = (svg) => {
    const title = svg.querySelector(":scope > title");
    if (title) { svg.setAttribute("aria-label", title.textContent); title.remove(); }
  };

  // --- code to copy -------------------------------------------------------------------------------------------------
  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      let done = false;
      try { await navigator.clipboard.writeText(button.dataset.copy); done = true; } catch { done = document.execCommand("copy"); }
      button.textContent = done ? "copied" : "selected";
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }

  // --- charts over one axis: the tooltip of the nearest place ---------------------------------------------------
  for (const script of all("script.points")) {
    const svg = script.parentElement.querySelector("svg.drawing");
    const { x: places, texts } = JSON.parse(script.textContent);
    if (!places.length) continue;
    silence(svg);
    const cursor = document.createElementNS(SVG, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "0");
    cursor.setAttribute("y2", "100%");
    let chosen = -1;
    const choose = (at, y) => {
      chosen = at;
      const box = svg.getBoundingClientRect();
      cursor.setAttribute("x1", 100 * places[at] + "%");
      cursor.setAttribute("x2", 100 * places[at] + "%");
      svg.append(cursor);
      show(texts[at], box.left + places[at] * box.width, y ?? box.top + 12);
    };
    const leave = () => { cursor.remove(); hide(); };
    const nearest = (share) => {
      let low = 0, high = places.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (places[middle] < share) low = middle + 1; else high = middle;
      }
      return low && share - places[low - 1] < places[low] - share ? low - 1 : low;
    };
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      choose(nearest((event.clientX - box.left) / box.width), event.clientY);
    };
    svg.addEventListener("pointermove", at);
    svg.addEventListener("pointerdown", at);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const last = places.length - 1;
      const moved = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: last }[event.key];
      if (moved === undefined) return;
      event.preventDefault();
      choose(clamp(moved, 0, last));
      svg.setAttribute("aria-label", texts[chosen]);
    });
  }

  // --- the timeline -------------------------------------------------------------------------------------------------
  const ROW = 20, READY = 40, BETWEEN = 8, BLOCK = 3;
  for (const root of all(".timeline")) {
    const laps = JSON.parse(root.querySelector("script.laps").textContent);
    const num = laps.asked.length;
    const asked = new Float64Array(num), handed = new Float64Array(num), stepped = new Float64Array(num);
    const began = new Float64Array(num), made = new Float64Array(num), sent = new Float64Array(num);
    let before = 0;
    for (let at = 0; at < num; at++) {
      before = asked[at] = before + laps.asked[at] / 1e6;
      handed[at] = asked[at] + laps.wait[at] / 1e6;
      stepped[at] = laps.step[at] < 0 ? NaN : handed[at] + laps.step[at] / 1e6;
      began[at] = laps.lane[at] < 0 ? NaN : laps.began[at] / 1e6;
      made[at] = began[at] + laps.make[at] / 1e6;
      sent[at] = made[at] + laps.send[at] / 1e6;
    }
    const known = [...sent.keys()].filter((at) => !Number.isNaN(sent[at]));
    const came = Float64Array.from(known, (at) => sent[at]).sort();
    const went = Float64Array.from(known, (at) => Math.max(handed[at], sent[at])).sort();
    const START = laps.begin / 1e6, END = Math.max(laps.end / 1e6, START + 1e-6);
    const lane = Number(root.dataset.lane), lanes = laps.lanes.length;
    const ahead = root.dataset.ahead === "yes";  // batches are loaded before they are requested
    const top = { step: 0, wait: ROW + 2, ready: 2 * (ROW + 2) + BETWEEN };
    top.lanes = top.ready + (ahead ? READY + BETWEEN : 0);
    const overview = root.querySelector("svg.overview"), detail = root.querySelector("svg.detail");
    const marks = detail.querySelector(".marks"), frame = overview.querySelector(".window");
    const depth = root.querySelector(".depth");
    const axis = root.querySelector(".xs"), readout = root.querySelector(".readout");
    let begin = Number(root.dataset.begin), end = Number(root.dataset.end), chosen = -1;
    silence(detail);
    detail.removeAttribute("role");
    detail.setAttribute("role", "application");
    readout.hidden = false;
    readout.textContent = "Point at a batch, or choose one with the arrow keys, to read its times.";

    const rect = (x, y, width, height) => `M${x.toFixed(1)} ${y}h${Math.max(width, 0.7).toFixed(1)}v${height}h-${Math.max(width, 0.7).toFixed(1)}z`;

    const draw = () => {
      const width = detail.clientWidth;
      if (!width) return;  // folded away
      const scale = width / (end - begin), x = (time) => (time - begin) * scale;
      const inside = (from, to) => to >= begin && from <= end;  // NaN is outside
      let visible = 0;
      for (let at = 0; at < num; at++) if (inside(asked[at], handed[at]) || inside(handed[at], stepped[at])) visible++;
      const isWhole = visible * BLOCK <= width;
      const paths = isWhole ? blocks(x, inside, width) : shares(x, width);
      const parts = [];
      for (const kind of ["step", "wait", "send", "load"]) if (paths[kind]) parts.push(`<path class="${kind}" d="${paths[kind]}"/>`);
      if (ahead) parts.push(`<path class="ready" d="${ready(width)}"/>`);
      marks.innerHTML = parts.join("") + outline(x, width);
      root.dataset.drawn = isWhole ? "blocks" : "columns";
      root.dataset.visible = visible;
      root.dataset.begin = begin.toFixed(6);
      root.dataset.end = end.toFixed(6);
      frame.setAttribute("x", (100 * (begin - START)) / (END - START) + "%");
      frame.setAttribute("width", Math.max(0.15, (100 * (end - begin)) / (END - START)) + "%");
      label(width);
    };
    const blocks = (x, inside, width) => {
      const paths = { step: "", wait: "", load: "", send: "" };
      const add = (kind, from, to, y, height, gap) => {
        if (!inside(from, to)) return;
        const left = clamp(x(from), -2, width + 2), right = clamp(x(to), -2, width + 2);
        paths[kind] += rect(left, y, right - left - (right - left > 4 ? gap : 0), height);
      };
      const height = lane - (lane >= 12 ? 3 : 1);
      for (let at = 0; at < num; at++) {
        add("wait", asked[at], handed[at], top.wait, ROW, 0);
        add("step", handed[at], stepped[at], top.step, ROW, 1);
        if (laps.lane[at] < 0) continue;
        const y = top.lanes + laps.lane[at] * lane;
        add("load", began[at], made[at], y, height, 1);
        if (sent[at] > made[at]) add("send", made[at], sent[at], y, height, 1);
      }
      return paths;
    };
    const shares = (x, width) => {  // too many to draw: the share of each column
      const each = 2, count = Math.ceil(width / each);
      const rows = { step: new Float32Array(count), wait: new Float32Array(count) };
      const making = Array.from({ length: lanes }, () => new Float32Array(count));
      const cover = (row, from, to) => {
        if (!(to > from)) return;
        const left = clamp(x(from) / each, 0, count), right = clamp(x(to) / each, 0, count);
        for (let at = Math.floor(left); at < right; at++) row[at] += Math.min(right, at + 1) - Math.max(left, at);
      };
      for (let at = 0; at < num; at++) {
        cover(rows.wait, asked[at], handed[at]);
        cover(rows.step, handed[at], stepped[at]);
        if (laps.lane[at] >= 0) cover(making[laps.lane[at]], began[at], made[at]);
      }
      const path = (row, y, height) => {
        let path = "";
        for (let at = 0; at < count; at++) {
          const tall = Math.min(1, row[at]) * height;
          if (tall > 0.2) path += `M${at * each} ${(y + height - tall).toFixed(1)}h${each}v${tall.toFixed(1)}h-${each}z`;
        }
        return path;
      };
      const height = lane - (lane >= 12 ? 3 : 1);
      return {
        step: path(rows.step, top.step, ROW),
        wait: path(rows.wait, top.wait, ROW),
        load: making.map((row, at) => path(row, top.lanes + at * lane, height)).join(""),
      };
    };
    const after = (times, time) => {  // how many are not later
      let low = 0, high = times.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (times[middle] <= time) low = middle + 1; else high = middle;
      }
      return low;
    };
    const ready = (width) => {
      const depths = [];
      for (let pixel = 0; pixel <= width; pixel++) {
        const time = begin + ((pixel + 0.5) / width) * (end - begin);
        depths.push(after(came, time) - after(went, time));
      }
      const most = Math.max(1, ...depths);
      depth.textContent = `0\u2013${most} ready`;
      let path = `M0 ${top.ready + READY}`;
      depths.forEach((here, pixel) => { path += `V${(top.ready + READY * (1 - here / most)).toFixed(1)}H${pixel + 1}`; });
      return path + `V${top.ready + READY}z`;
    };
    const outline = (x, width) => {
      if (chosen < 0) return "";
      let path = "";
      const add = (from, to, y, height) => {
        if (!(to >= begin && from <= end)) return;
        const left = clamp(x(from), -3, width + 3), right = clamp(x(to), -3, width + 3);
        path += rect(left, y, right - left, height);
      };
      add(asked[chosen], handed[chosen], top.wait, ROW);
      add(handed[chosen], stepped[chosen], top.step, ROW);
      if (laps.lane[chosen] >= 0) add(began[chosen], made[chosen], top.lanes + laps.lane[chosen] * lane, lane - 2);
      return `<path class="chosen" d="${path}"/>`;
    };
    const label = (width) => {
      const step = timeStep((end - begin) / Math.max(3, Math.min(7, width / 90)));
      axis.textContent = "";
      for (let number = Math.ceil(begin / step - 1e-9) + 0; number * step <= end + 1e-9; number++) {
        const share = (number * step - begin) / (end - begin), span = document.createElement("span");
        span.textContent = moment(number * step, step, end);
        span.style.left = 100 * share + "%";
        if (share < 0.04) span.className = "first"; else if (share > 0.96) span.className = "last";
        axis.append(span);
      }
    };

    const to = (from, until) => {
      const least = Math.min(END - START, 2e-5);
      const span = clamp(until - from, least, END - START);
      begin = clamp(from, START, END - span);
      end = begin + span;
      draw();
    };
    const middle = () => (chosen >= 0 && handed[chosen] > begin && handed[chosen] < end ? handed[chosen] : (begin + end) / 2);
    const zoom = (factor, around = middle()) => to(around - (around - begin) * factor, around + (end - around) * factor);
    const pan = (share) => to(begin + share * (end - begin), end + share * (end - begin));
    const maker = (at) => {
      for (let row = laps.lane[at]; row >= 0; row--) if (laps.lanes[row]) return laps.lanes[row];
      return "";
    };
    const about = (at) => {
      const parts = [];
      if (laps.lane[at] >= 0) {
        parts.push(`loaded by ${maker(at)} in ${duration(made[at] - began[at])}`);
        const early = asked[at] - sent[at];
        parts.push(early >= 0 ? `ready ${duration(early)} before the request` : `ready ${duration(-early)} after the request`);
      }
      parts.push(`waited for ${duration(handed[at] - asked[at])}`);
      if (!Number.isNaN(stepped[at])) parts.push(`step ${duration(stepped[at] - handed[at])}`);
      return `Batch ${(laps.first + at).toLocaleString("en-US")}: ${parts.join(", ")}.`;
    };
    const pick = (event) => {
      const box = detail.getBoundingClientRect();
      const time = begin + ((event.clientX - box.left) / box.width) * (end - begin);
      const row = Math.floor((event.clientY - box.top - top.lanes) / lane);
      if (row >= 0 && row < lanes) {
        for (let at = 0; at < num; at++) if (laps.lane[at] === row && began[at] <= time && time <= made[at]) return at;
        return -1;
      }
      return after(asked, time) - 1;
    };
    const choose = (at) => {
      chosen = at;
      if (at >= 0) readout.textContent = about(at);
      draw();
    };
    const seek = (at) => {  // choose a batch and bring it into view
      const from = Math.min(asked[at], Number.isNaN(began[at]) ? asked[at] : began[at]);
      const until = Number.isNaN(stepped[at]) ? handed[at] : stepped[at];
      if (asked[at] < begin || until > end) {
        const span = Math.max(end - begin, 1.2 * (until - asked[at])), middle = (asked[at] + until) / 2;
        begin = clamp(middle - span / 2, START, Math.max(START, END - span));
        end = Math.min(END, begin + span);
      }
      choose(at);
      return from;
    };
    const around = (at, count = 32) => {
      const first = Math.max(0, at - count), last = Math.min(num - 1, at + count);
      to(asked[first], Number.isNaN(stepped[last]) ? handed[last] : stepped[last]);
      choose(at);
    };
    const longest = () => {
      let found = Math.min(1, num - 1);
      for (let at = found; at < num; at++) if (handed[at] - asked[at] > handed[found] - asked[found]) found = at;
      return found;
    };

    const doing = {
      earlier: () => pan(-0.6), later: () => pan(0.6), in: () => zoom(0.5), out: () => zoom(2),
      all: () => to(START, END), longest: () => around(longest()),
    };
    const tools = root.querySelector(".tools");
    tools.hidden = false;
    tools.addEventListener("click", (event) => doing[event.target.dataset.do]?.());
    detail.addEventListener("keydown", (event) => {
      const keys = {
        ArrowLeft: () => seek(clamp(chosen < 0 ? after(asked, begin) : chosen - 1, 0, num - 1)),
        ArrowRight: () => seek(clamp(chosen < 0 ? after(asked, begin) : chosen + 1, 0, num - 1)),
        Home: () => seek(0), End: () => seek(num - 1), "+": doing.in, "-": doing.out, "=": doing.in, 0: doing.all,
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      hide();
      event.preventDefault();
      keys[event.key]();
    });
    detail.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;  // the page scrolls
      event.preventDefault();
      const box = detail.getBoundingClientRect();
      if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, begin + ((event.clientX - box.left) / box.width) * (end - begin));
      else pan(event.deltaX / box.width);
    }, { passive: false });

    let held = null;
    detail.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, begin, end, moved: false };
      detail.setPointerCapture(event.pointerId);
    });
    detail.addEventListener("pointermove", (event) => {
      if (held && Math.abs(event.clientX - held.x) > 3) held.moved = true;
      if (held?.moved) {
        detail.classList.add("dragged");
        const shift = ((held.x - event.clientX) / detail.clientWidth) * (held.end - held.begin);
        to(held.begin + shift, held.end + shift);
        hide();
        return;
      }
      const at = pick(event);
      if (at !== chosen) { chosen = at; draw(); }
      if (at < 0) hide(); else show(about(at), event.clientX, event.clientY);
    });
    detail.addEventListener("pointerup", (event) => {
      if (held && !held.moved) choose(pick(event));
      held = null;
      detail.classList.remove("dragged");
    });
    detail.addEventListener("pointercancel", () => { held = null; });
    detail.addEventListener("pointerleave", () => { hide(); if (document.activeElement !== detail) { chosen = -1; draw(); } });

    let brushed = null;
    const timeAt = (event) => {
      const box = overview.getBoundingClientRect();
      return START + clamp((event.clientX - box.left) / box.width, 0, 1) * (END - START);
    };
    overview.addEventListener("pointerdown", (event) => {
      const time = timeAt(event);
      brushed = { x: event.clientX, time, begin, end, isMove: time >= begin && time <= end, moved: false };
      overview.setPointerCapture(event.pointerId);
    });
    overview.addEventListener("pointermove", (event) => {
      if (!brushed) return;
      if (Math.abs(event.clientX - brushed.x) > 3) brushed.moved = true;
      if (!brushed.moved) return;
      const time = timeAt(event);
      if (brushed.isMove) to(brushed.begin + time - brushed.time, brushed.end + time - brushed.time);
      else to(Math.min(time, brushed.time), Math.max(time, brushed.time));
    });
    overview.addEventListener("pointerup", (event) => {
      if (brushed && !brushed.moved) {
        const time = timeAt(event), half = (end - begin) / 2;
        to(time - half, time + half);
      }
      brushed = null;
    });
    overview.addEventListener("pointercancel", () => { brushed = null; });

    new ResizeObserver(draw).observe(detail);
    draw();
  }
  document.documentElement.dataset.ready = "yes";
})();
