"""One function over many units of work: by processes on this machine, or by Ray on many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from bertsmith.cores import available_cores
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.tokenizer.parallel import map_batches

Engine = Literal["local", "ray"]
Unit = TypeVar("Unit")
Result = TypeVar("Result")


def map_units(
    work: Callable[[Unit], Result], units: Sequence[Unit], *, engine: Engine = "local", workers: int | None = None
) -> Iterator[Result]:
    """Applies a function to every unit.

    Args:
        work: picklable.
        units: what to work on.
        engine: `local` for processes on this machine; `ray` for the cluster at `RAY_ADDRESS`, or a new local one. With
            Ray, all machines must see input and output under the same names.
        workers: processes; None for all cores of the machine or cluster.

    Returns:
        The results in the order of the units.

    Raises:
        ConfigError: the engine is unknown or not installed.
        BertsmithError: what `work` raised, or a worker was killed (while iterating).
    """
    if engine == "local":
        return map_batches(work, units, workers or available_cores())
    if engine == "ray":
        return _map_ray(work, units, workers)
    raise ConfigError(f"--engine {engine!r} is unknown; use local or ray")


def _map_ray(work: Callable[[Any], Any], units: Sequence[Any], workers: int | None) -> Iterator[Any]:
    try:
        import ray
        from ray.util import ActorPool
    except ImportError:
        raise ConfigError("--engine ray needs ray; install it with: pip install 'bertsmith[cluster]'") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    count = min(workers or int(ray.cluster_resources().get("CPU", 1)), max(1, len(units)))
    # 每个 actor 只收一次函数（连同词表），缓存在它的一生里越用越热
    actor = ray.remote(num_cpus=1)(_Worker)
    actors = [actor.remote(work) for _ in range(count)]
    try:
        yield from ActorPool(actors).map(lambda worker, unit: worker.run.remote(unit), units)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BertsmithError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise BertsmithError(f"a Ray worker was lost ({type(error).__name__}); run the same command again") from None
    finally:
        for worker in actors:
            ray.kill(worker)


class _Worker:
    """What lives in a Ray process."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def run(self, unit: Any) -> Any:
        return self._work(unit)
