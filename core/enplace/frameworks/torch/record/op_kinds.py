"""What PyTorch's ops do, in the words of :mod:`enplace.values.op_kinds`."""

from __future__ import annotations

from enplace.frameworks.torch.step import RecordedOp
from enplace.values.op_kinds import OpKind, OpPass

ALLOCATES = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
"""Ops that only allocate: whatever writes first makes the tensor."""

FREE = frozenset(
    [
        *("_local_scalar_dense", "_reshape_alias", "alias", "detach", "detach_", "lift"),
        *("lift_fresh", "record_stream", "resize_", "set_"),
    ]
)
"""Ops that do no work on a device, besides views."""

_KINDS = {
    OpKind.MATMUL: "mm addmm linear _scaled_mm _grouped_mm",
    OpKind.BATCH_MATMUL: """
        bmm baddbmm _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_fused_attention_overrideable_backward
    """,
    OpKind.ELEMENTWISE: """
        abs add addcdiv addcmul clamp clamp_max clamp_min clone copy cos div elu elu_backward eq
        erf exp ge gelu gelu_backward gt hardtanh hardtanh_backward le leaky_relu
        leaky_relu_backward lerp log logical_and logical_not logical_or lt masked_fill maximum
        minimum mul native_dropout_backward ne neg pow reciprocal relu rsqrt rsub sigmoid
        sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt sub tanh
        tanh_backward threshold_backward _to_copy where zeros_like ones_like full_like
    """,
    OpKind.POOL: """
        max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward upsample_nearest2d
        upsample_nearest2d_backward
    """,
    OpKind.ROWS: """
        _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm
        native_group_norm _fused_rms_norm
    """,
    OpKind.GATHER: "embedding gather index index_select",
    OpKind.REDUCE: """
        sum mean max min amax amin norm linalg_vector_norm embedding_dense_backward
        nll_loss_forward
    """,
    OpKind.RANDOM: """
        bernoulli native_dropout normal rand rand_like randint randn randn_like randperm
    """,
    OpKind.CONSTANT: "zeros ones full arange scalar_tensor",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def kind_of(op: RecordedOp) -> OpKind:
    """Return what an op does; one in place, or on lists, does what the other does."""
    if op.pass_ == OpPass.UPDATE and op.writes:
        return OpKind.UPDATE
    name = op.kind.removeprefix("_foreach_")
    name = name if name.startswith("_") else name.rstrip("_")
    if name in ("convolution", "cudnn_convolution", "_convolution"):
        return OpKind.GROUPED_CONV if op.grouped else OpKind.CONV
    return _KIND_OF.get(name, OpKind.OTHER)
