"""Fabric: `fabric.setup_dataloaders(loader)` keeps the loader, gives it its rank, and hides nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from stoker.integrations.lightning import changed_copy, replace, sampler_changes, shared_out
from stoker.integrations.loaders import is_ours


def install(module: ModuleType) -> None:
    """Let Fabric take our loaders as they are. `module` is the one that `Fabric` is in."""
    package = module.__name__.removesuffix(".fabric")
    replace(module, "Fabric._setup_dataloader", lambda original: _setting_up(original, package))


def _setting_up(original: Callable[..., Any], package: str) -> Callable[..., Any]:
    wrapper = _wrapper_class(import_module(f"{package}.wrappers"))

    def set_up(fabric: Any, dataloader: Any, use_distributed_sampler: bool = True, move_to_device: bool = True) -> Any:
        if not is_ours(dataloader):
            return original(fabric, dataloader, use_distributed_sampler, move_to_device)
        loader = dataloader
        ranks = getattr(fabric._strategy, "distributed_sampler_kwargs", None) if use_distributed_sampler else None
        changes: dict[str, Any] = {}
        if loader._is_planned or loader._is_stream:
            changes = shared_out(loader, ranks, "use_distributed_sampler=False to setup_dataloaders")
        elif ranks is not None and fabric._requires_distributed_sampler(loader):
            sampler = fabric._get_distributed_sampler(loader, **ranks)
            changes = sampler_changes(f"{package}.utilities.data", loader, sampler)
        if changes:
            loader = changed_copy(loader, changes)
        wrapped = original(fabric, loader, False, move_to_device)
        return wrapper(wrapped._dataloader, wrapped._device)

    return set_up


def _wrapper_class(wrappers: Any) -> Any:
    class FabricLoader(wrappers._FabricDataLoader):  # type: ignore[misc]
        """What Fabric wraps around a loader, with all that the loader has: `state_dict`, `set_epoch`, `recipe`."""

        def __init__(self, dataloader: Any, device: Any = None) -> None:
            self._dataloader, self._device = dataloader, device

        def __getattr__(self, name: str) -> Any:
            if name == "_dataloader":  # while this is copied, it is not there yet
                raise AttributeError(name)
            return getattr(self._dataloader, name)

        def __iter__(self) -> Iterator[Any]:
            loader, device = self._dataloader, self._device
            loader.set_epoch(loader.next_epoch)  # it counts epochs itself; a sampler of the user's needs to know
            for batch in loader:
                yield batch if device is None else wrappers.move_data_to_device(batch, device)

    return FabricLoader
