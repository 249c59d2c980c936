"""What an optimiser keeps of the parameters of this stage, which a script may not take for all."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, is_of_script


class OwnStates(defaultdict[Any, Any]):
    """The states of an optimiser by parameter, of which a script gets none between its steps."""

    def turn(self, shown: bool) -> None:
        """Let all have them, or no script."""
        self.default_factory = dict if shown else _refuse

    def __reduce__(self) -> Any:
        if self.default_factory is _refuse:
            _refuse()
        return super().__reduce__()


def _unless_refused(usual: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(usual)
    def get(states: OwnStates, *args: Any) -> Any:
        if states.default_factory is _refuse and is_of_script(sys._getframe(1)):
            _refuse()
        return usual(states, *args)

    return get


for _name in ("__contains__", "__iter__", "__len__", "copy", "get", "items", "keys", "values"):
    setattr(OwnStates, _name, _unless_refused(getattr(OwnStates, _name)))


def _refuse() -> None:
    raise PipelineRefusedError(
        "the script reads what its optimiser keeps of each parameter, and each process has that of "
        "its own stage; take all by optimizer.state_dict()"
    )
