"""What ops have to do, told from the arguments of PyTorch's dispatcher."""

import pytest

from enplace.values.op_kinds import OpKind

torch = pytest.importorskip("torch")


def test_an_op_on_lists_computes_as_much_as_the_ops_on_their_tensors():
    from enplace.frameworks.torch.record.work import work_of

    def flops(func, *args):
        return work_of(func, OpKind.UPDATE, args, {}, func(*args)).flops

    tensors = [torch.ones(3), torch.ones(5, 7)]
    each = [flops(torch.ops.aten.mul.Scalar, tensor, 2.0) for tensor in tensors]
    assert flops(torch.ops.aten._foreach_mul.Scalar, tensors, 2.0) == sum(each) == 38
