"""Loaders with engines of their own: SPDL, Grain, DALI, tf.data and FFCV."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from benchmarks.images.jobs import BATCH_SIZE, CROPS, PREFETCH_FACTOR, SIZE, Contender, Job
from benchmarks.images.photographs import CORPORA
from benchmarks.images.torch_loaders import Files, Order, QuickFiles, Stacked, crop_of

# ---------------------------------------------------------------- SPDL


class _ByFfmpeg:
    """Batches that ffmpeg decodes and scales, with bilinear weights that widen as a picture shrinks."""

    def __init__(self, job: Job) -> None:
        self.paths, self.labels = job.photographs.entries()
        self.is_cropped = job.is_cropped

    def __call__(self, positions: list[int]) -> tuple[Any, Any]:
        io = import_module("spdl.io")
        frames = [self._frame(io, self.paths[position]) for position in positions]
        pictures = io.to_torch(io.convert_frames(frames))
        return pictures, torch.tensor([self.labels[position] for position in positions])

    def _frame(self, io: Any, path: str) -> Any:
        packets = io.demux_image(path)
        wanted = f"scale={SIZE}:{SIZE}:flags=bilinear"
        if self.is_cropped:
            left, top, width, height = crop_of(packets.width, packets.height)
            flip = ",hflip" if random.random() < 0.5 else ""
            wanted = f"crop={width}:{height}:{left}:{top}:exact=1,{wanted}{flip}"
        return io.decode_packets(packets, filter_desc=f"{wanted},format=rgb24")


class _Spdl:
    """A pipeline of threads in the trainer's process, as SPDL advises for work that lets other threads run."""

    def __init__(self, job: Job, load: Callable[[list[int]], Any], num_samples: int) -> None:
        self.load, self.num_workers = load, job.num_workers
        self.order = Order(job, num_samples)

    def __iter__(self) -> Iterator[Any]:
        pipeline = import_module("spdl.pipeline")
        built = (
            pipeline.PipelineBuilder()
            .add_source(self.order)
            .pipe(self.load, concurrency=self.num_workers, output_order="input")
            .add_sink(PREFETCH_FACTOR * self.num_workers)
            .build(num_threads=self.num_workers)
        )
        with built.auto_stop():
            yield from built


def _spdl_ffmpeg(job: Job) -> Any:
    load = _ByFfmpeg(job)
    return _Spdl(job, load, len(load.paths))


def _spdl_quick(job: Job) -> Any:
    files = QuickFiles(job)
    return _Spdl(job, Stacked(files), len(files))


def show_ffmpeg() -> None:
    """Let SPDL find ffmpeg's libraries, if PyAV brought them: under names of their own, so that they need links."""
    found = find_spec("av")
    if found is None or found.origin is None:
        return
    libraries = Path(found.origin).parent.parent / "av.libs"
    folder = CORPORA / "ffmpeg"
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries.glob("lib*.so.*"):
        match = re.fullmatch(r"(lib(?:av|sw)[a-z]+)-\w+\.so\.(\d+).*", library.name)
        link = folder / f"{match[1]}.so.{match[2]}" if match else None
        if link is not None and not link.is_symlink():
            link.symlink_to(library)
    there = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), str(libraries), there)))


# ---------------------------------------------------------------- Grain


class _Numbered:
    def __init__(self, files: Files) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> Any:
        pixels, label = self.files[position]
        return {"image": pixels.numpy(), "label": label}


def _grain(job: Job) -> Any:
    """Threads in the trainer's process that make a batch each."""
    grain = import_module("grain")
    files = grain.MapDataset.source(_Numbered(QuickFiles(job)))
    if job.is_shuffled:
        files = files.shuffle(seed=0)
    ahead = grain.ReadOptions(num_threads=job.num_workers, prefetch_buffer_size=PREFETCH_FACTOR * job.num_workers)
    return files.batch(BATCH_SIZE, drop_remainder=True).to_iter_dataset(ahead)


# ---------------------------------------------------------------- DALI


def _dali(job: Job) -> Any:
    """Its pipeline on the CPU. It draws the crop first, but decodes all of the file."""
    dali, fn = import_module("nvidia.dali"), import_module("nvidia.dali.fn")
    plugin = import_module("nvidia.dali.plugin.pytorch")
    base = import_module("nvidia.dali.plugin.base_iterator")
    paths, labels = job.photographs.entries()

    @dali.pipeline_def(batch_size=BATCH_SIZE, num_threads=job.num_workers, device_id=None)  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=job.is_shuffled, name="files")
        if job.is_cropped:
            pictures = fn.decoders.image_random_crop(
                data, device="cpu", output_type=dali.types.RGB, random_area=[0.08, 1.0]
            )
        else:
            pictures = fn.decoders.image(data, device="cpu", output_type=dali.types.RGB)
        pictures = fn.resize(
            pictures, resize_x=SIZE, resize_y=SIZE, interp_type=dali.types.INTERP_LINEAR, antialias=True
        )
        if job.is_cropped:
            pictures = fn.flip(pictures, horizontal=fn.random.coin_flip())
        return pictures, label

    return plugin.DALIGenericIterator(
        pipeline(prefetch_queue_depth=PREFETCH_FACTOR),
        ["image", "label"],
        reader_name="files",
        last_batch_policy=base.LastBatchPolicy.DROP,
        auto_reset=True,
    )


def _first_of(batch: Any) -> Any:
    return batch[0]["image"], batch[0]["label"]


# ---------------------------------------------------------------- tf.data


def _tensorflow(is_antialiased: bool) -> Callable[[Job], Any]:
    def make(job: Job) -> Any:
        """Only the crop is decoded; resizing gives floats, which are rounded."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        tf = import_module("tensorflow")
        paths, labels = job.photographs.entries()

        def load(path: Any, label: Any) -> Any:
            data = tf.io.read_file(path)
            if job.is_cropped:
                begin, size, _ = tf.image.sample_distorted_bounding_box(
                    tf.io.extract_jpeg_shape(data),
                    tf.zeros([1, 0, 4]),
                    aspect_ratio_range=(3 / 4, 4 / 3),
                    area_range=(0.08, 1.0),
                    max_attempts=10,
                    use_image_if_no_bounding_boxes=True,
                    min_object_covered=0.0,
                )
                window = tf.stack([begin[0], begin[1], size[0], size[1]])
                pixels = tf.image.decode_and_crop_jpeg(data, window, channels=3)
            else:
                pixels = tf.io.decode_jpeg(data, channels=3)
            pixels = tf.image.resize(pixels, (SIZE, SIZE), antialias=is_antialiased)
            if job.is_cropped:
                pixels = tf.image.random_flip_left_right(pixels)
            return tf.cast(tf.clip_by_value(tf.round(pixels), 0, 255), tf.uint8), label

        dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
        if job.is_shuffled:
            dataset = dataset.shuffle(len(paths))
        dataset = dataset.map(load, num_parallel_calls=job.num_workers, deterministic=True)
        dataset = dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(PREFETCH_FACTOR * job.num_workers)
        threads = tf.data.Options()
        threads.threading.private_threadpool_size = job.num_workers
        threads.threading.max_intra_op_parallelism = 1
        return _Arrays(dataset.with_options(threads))

    return make


class _Arrays:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return self.dataset.as_numpy_iterator()


# ---------------------------------------------------------------- FFCV


def _ffcv(format_name: str) -> Callable[[Job], Any]:
    def make(job: Job) -> Any:
        """From its own file, in which photographs are encoded anew. It compiles its pipeline at the first batch."""
        loader, fields = import_module("ffcv.loader"), import_module("ffcv.fields.decoders")
        rgb, transforms = import_module("ffcv.fields.rgb_image"), import_module("ffcv.transforms")
        decoder = (
            rgb.RandomResizedCropRGBImageDecoder((SIZE, SIZE))
            if job.is_cropped
            else rgb.CenterCropRGBImageDecoder((SIZE, SIZE), 1.0)
        )
        flip = [transforms.RandomHorizontalFlip()] if job.is_cropped else []
        return loader.Loader(
            str(job.photographs.at(format_name) / "all.beton"),
            batch_size=BATCH_SIZE,
            num_workers=job.num_workers,
            order=loader.OrderOption.RANDOM if job.is_shuffled else loader.OrderOption.SEQUENTIAL,
            drop_last=True,
            os_cache=True,
            batches_ahead=PREFETCH_FACTOR * job.num_workers,
            pipelines={
                "image": [decoder, *flip, transforms.ToTensor()],
                "label": [fields.IntDecoder(), transforms.ToTensor()],
            },
        )

    return make


SPDL_FFMPEG, SPDL_QUICK, GRAIN, DALI = "SPDL, ffmpeg", "SPDL, simplejpeg", "Grain, simplejpeg", "DALI, CPU"
TF, TF_PLAIN = "tf.data", "tf.data, not antialiased"
FFCV, FFCV_SMALL = "FFCV, encoded anew", "FFCV, shrunken"
_pair = itemgetter(0, 1)
_named = itemgetter("image", "label")

CONTENDERS = {
    SPDL_FFMPEG: Contender(_spdl_ffmpeg, _pair, ("spdl.pipeline", "spdl.io", "av")),
    SPDL_QUICK: Contender(_spdl_quick, _pair, ("spdl.pipeline", "simplejpeg")),
    GRAIN: Contender(_grain, _named, ("grain", "simplejpeg")),
    DALI: Contender(_dali, _first_of, ("nvidia.dali", "nvidia.dali.plugin.pytorch")),
    TF: Contender(_tensorflow(True), _pair, ("tensorflow",)),
    TF_PLAIN: Contender(_tensorflow(False), _pair, ("tensorflow",), is_antialiased=False),
    FFCV: Contender(_ffcv("beton"), _pair, ("ffcv", "ffcv.loader"), "beton"),
    FFCV_SMALL: Contender(
        _ffcv("beton-small"), _pair, ("ffcv", "ffcv.loader"), "beton-small", jobs=(CROPS,), is_shrunk=True
    ),
}
