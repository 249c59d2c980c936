"""The compiled walk along the critical path, against a readable one."""

from hypothesis import given
from tests.problems import planned_problems

from enplace.machine import critical_path, simulate


class SlowWalk:
    """The walk back from the last op; a step is ("op", number) or ("transfer", number)."""

    def __init__(self, schedule):
        self.schedule, self.path = schedule, []
        self.cluster, self.profile = schedule.problem.cluster, schedule.problem.profile
        self.span = {
            ("op", i): (start, finish)
            for i, (start, finish) in enumerate(
                zip(schedule.op_start_us, schedule.op_finish_us, strict=True)
            )
        } | {
            ("transfer", i): (start, finish)
            for i, (start, finish) in enumerate(
                zip(schedule.transfer_start_us, schedule.transfer_finish_us, strict=True)
            )
        }

    def run(self):
        ops = [step for step in self.span if step[0] == "op"]
        step = max(ops, key=lambda op: (self.span[op][1], op[1]))
        while step is not None:
            self.path.append(step)
            step = self.before_op(step) if step[0] == "op" else self.before_transfer(step)
        return self.path[::-1]

    def before_op(self, step):
        start, device = self.span[step][0], self.schedule.plan.device[step[1]]
        if start == 0:
            return None
        edges = self.profile.in_edges[
            self.profile.in_ptr[step[1]] : self.profile.in_ptr[step[1] + 1]
        ]
        inputs = [self.source(tensor, device) for tensor in self.profile.edge_tensor[edges]]
        latest = max(inputs, key=lambda i: self.span[i][1], default=None)
        if latest is not None and self.span[latest][1] >= start:
            return latest
        lanes = self.cluster.lane_owner[self.schedule.plan.device]
        rivals = [
            (kind, op)
            for (kind, op), (begun, finish) in self.span.items()
            if kind == "op" and finish == start and begun < start and lanes[op] == lanes[step[1]]
        ]
        return rivals[0] if rivals else latest

    def inputs_of(self, op):
        return slice(self.profile.in_ptr[op], self.profile.in_ptr[op + 1])

    def source(self, tensor, device):
        """Return the op that makes a tensor, or the transfer that brings it to a device."""
        maker = int(self.profile.tensor_op[tensor])
        if self.schedule.plan.device[maker] == device:
            return "op", maker
        schedule = self.schedule
        brought = (schedule.transfer_tensor == tensor) & (schedule.transfer_to == device)
        return "transfer", int(brought.argmax())

    def before_transfer(self, step):
        start = self.span[step][0]
        maker = "op", int(self.profile.tensor_op[self.schedule.transfer_tensor[step[1]]])
        if self.span[maker][1] >= start:
            return maker
        rivals = [
            rival
            for rival, (_, finish) in self.span.items()
            if rival[0] == "transfer" and finish == start and rival not in self.path
            if self.channels(rival) & self.channels(step)
        ]
        return min(rivals, key=lambda rival: self.span[rival][0], default=maker)

    def channels(self, step):
        ends = self.schedule.transfer_from[step[1]], self.schedule.transfer_to[step[1]]
        return next(
            set(link.channels) for link in self.cluster.links if (link.source, link.target) == ends
        )


@given(planned=planned_problems())
def test_the_critical_path_equals_the_reference(planned):
    schedule = simulate(*planned)
    path = critical_path(schedule)
    kinds = ["transfer" if is_transfer else "op" for is_transfer in path.is_transfer]
    assert list(zip(kinds, path.number.tolist(), strict=True)) == SlowWalk(schedule).run()
