"""Finds, fetches, converts and loads the model that a name stands for."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from kvcore.memory.read import read_sample
from tui import paths
from tui.engine import hub
from tui.engine.backend import backend
from tui.engine.convert import convert
from tui.engine.download import SHA256, fetch_smollm2
from tui.engine.errors import LoadStopped, ModelError
from tui.engine.folder import build_folder, remove_leftovers
from tui.engine.gguf import GGUFError, read_gguf
from tui.messages import Loading, ModelInfo

BUILT_IN = "smollm2"

FORMAT = 1
"""Counts what a converted folder is like; a new one makes old conversions be made again."""

EVALUATED_AT_ONCE = 64 * 1024 * 1024
"""Bytes of weights between two reports of progress."""

SHARE_FOR_WEIGHTS = 0.8
"""Of the available memory, how much fp32 weights may take: the rest is for cache and scratch."""

Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Loaded:
    model: nn.Module
    tokenizer: TokenizerWrapper
    info: ModelInfo


def load(name: str, progress: Callable[[Loading], None], cancelled: Callable[[], bool]) -> Loaded:
    """The model that `name` stands for, with every array evaluated, ready for any thread.

    `name`: "smollm2", a folder in mlx-lm's layout, a GGUF file, or a Hugging Face id.
    Raises ModelError, with a sentence; LoadStopped soon after `cancelled` has become true.
    """

    def report(stage: Any, done: int, total: int | None) -> None:
        if cancelled():
            raise LoadStopped(f"Loading {name} was stopped.")
        progress(Loading(stage=stage, done=done, total=total))

    try:
        remove_leftovers(paths.models())
        folder = _find(name, report)
        return _load_folder(name, folder, report)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ModelError(
            f"{name} cannot be loaded: {error.strerror or error}{where}: check the disk and the "
            f"rights of {paths.models()}, or name another model."
        ) from error


def _find(name: str, report: Report) -> Path:
    """The folder with mlx-lm's layout, made first where it has to be."""
    if name == BUILT_IN:
        return _built_in(report)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if path.is_file():
        return _converted(path, report)
    if hub.is_id(name):
        return hub.fetch(name, lambda done, total: report("download", done, total))
    raise ModelError(
        f"There is no folder or file {name!r}: give a folder, a .gguf file, "
        f"a Hugging Face id (owner/name), or {BUILT_IN}."
    )


def _built_in(report: Report) -> Path:
    target = paths.models() / f"{BUILT_IN}-{SHA256[:8]}-{FORMAT}"

    def fill(folder: Path) -> None:
        with TemporaryDirectory(dir=folder) as scratch:
            gguf = fetch_smollm2(Path(scratch), lambda done, total: report("download", done, total))
            convert(read_gguf(gguf), folder, lambda done, total: report("convert", done, total))

    build_folder(target, fill, lambda: report("download", 0, None))
    return target


def _converted(path: Path, report: Report) -> Path:
    """The folder that a GGUF was converted to; of one file only the newest is kept."""
    state = path.stat()
    origin = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    content = hashlib.sha256(f"{state.st_size} {state.st_mtime_ns} {FORMAT}".encode())
    prefix = f"{path.stem}-{origin}-"
    target = paths.models() / f"{prefix}{content.hexdigest()[:8]}"

    def fill(folder: Path) -> None:
        convert(read_gguf(path), folder, lambda done, total: report("convert", done, total))

    try:
        build_folder(target, fill, lambda: report("convert", 0, None))
    except GGUFError as error:
        raise ModelError(f"{path} cannot be converted: {error}.") from error
    for folder in paths.models().iterdir():
        if folder.name.startswith(prefix) and folder != target:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _load_folder(name: str, folder: Path, report: Report) -> Loaded:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        advice = f"give {ggufs[0]} itself" if ggufs else "give the folder of an MLX model"
        raise ModelError(f"{folder} has no config.json, so it is no model folder: {advice}.")
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"{folder} has no weights (model*.safetensors): give a complete MLX model, "
            "for example one of mlx-community's."
        )
    if not any(folder.glob("*token*")):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json): give a complete MLX model.")
    report("weights", 0, None)
    try:
        model: Any
        model, config = mlx_lm.utils.load_model(folder, lazy=True)
        tokenizer = mlx_lm.utils.load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        slow = _prepare_for_cpu(model) if _on_cpu() else None
        weights = _evaluate(name, model, report)
    except ModelError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # mlx-lm and transformers raise what they like, OSErrors of their own among them.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" .:;")
        raise ModelError(
            f"{name} cannot be loaded by mlx-lm {version('mlx-lm')}: {reason}; "
            f"check the files in {folder}, or name another model."
        ) from error
    info = ModelInfo(
        name=name,
        context=_context(config),
        weights=weights,
        layers=len(model.layers),
        backend=backend() if slow is None else f"CPU, {slow}",
    )
    return Loaded(model, tokenizer, info)


def _on_cpu() -> bool:
    return not (mx.metal.is_available() or mx.cuda.is_available())


def _prepare_for_cpu(model: nn.Module) -> str | None:
    """Weights in fp32, the only kind that MLX gives to a BLAS on a CPU.

    Where they would not fit into memory, they stay as shipped, and the answer says so.
    """
    nbytes = 4 * mlx_lm.utils.get_total_parameters(model)
    available = read_sample().available
    if available is not None and nbytes > SHARE_FOR_WEIGHTS * available:
        return f"weights as shipped (slow: fp32 takes {nbytes / 2**30:.1f} GB)"
    model.set_dtype(mx.float32)
    mlx_lm.utils.dequantize_model(model)
    model.set_dtype(mx.float32)
    return None


def _evaluate(name: str, model: nn.Module, report: Report) -> int:
    """Evaluates every array of the model, constants too; returns their bytes.

    What is left lazy belongs to this thread and could not be used by another.
    Raises ModelError where they could never fit: the kernel would end the process instead.
    """
    arrays = [array for _, array in tree_flatten(model) if isinstance(array, mx.array)]
    total = sum(array.nbytes for array in arrays)
    sample = read_sample()
    room = sample.gpu_limit if mx.cuda.is_available() else sample.total
    if room is not None and total > room:
        raise ModelError(
            f"{name} has weights of {total / 2**30:.1f} GB, and there are {room / 2**30:.1f} GB "
            "of memory here: take a smaller model, or one of fewer bits."
        )
    done = 0
    group: list[mx.array] = []
    for array in arrays:
        group.append(array)
        if sum(member.nbytes for member in group) >= EVALUATED_AT_ONCE:
            mx.eval(group)
            done += sum(member.nbytes for member in group)
            group = []
            report("weights", done, total)
    mx.eval(group)
    # The pool still holds what the weights were made from.
    mx.clear_cache()
    report("weights", total, total)
    return total


def _context(config: dict[str, Any]) -> int | None:
    for fields in (config, config.get("text_config") or {}):
        context = fields.get("max_position_embeddings")
        if isinstance(context, int):
            return context
    return None
