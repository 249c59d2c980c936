from enplace.frameworks.torch.record.kernels import join_kernels


def span(category, name, ts, dur, tid=1, **details):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": tid,
            "args": details}  # fmt: skip


def launch(ts, correlation, tid=1):
    return span("cuda_runtime", "cudaLaunchKernel", ts, 2, tid, correlation=correlation)


def kernel(ts, dur, correlation, **details):
    return span("kernel", "gemm", ts, dur, 7, correlation=correlation, **details)


def test_a_kernel_belongs_to_the_call_that_launched_it_however_late_it_runs():
    found = join_kernels(
        [
            span("user_annotation", "enplace#0", 0, 10),
            span("user_annotation", "enplace#1", 20, 10),
            launch(5, 100),
            launch(25, 101),
            launch(27, 102),
            kernel(50, 40, 100),
            kernel(90, 3, 101),
            span("gpu_memset", "Memset", 95, 2, 7, correlation=102),
        ]
    )
    assert dict(found.call_us) == {0: 40, 1: 5}
    assert dict(found.call_kernels) == {0: 1, 1: 2}
    assert found.unjoined_us == 0


def test_threads_have_ranges_of_their_own():
    found = join_kernels(
        [
            span("user_annotation", "enplace#0", 0, 100, tid=1),
            span("user_annotation", "enplace#1", 10, 10, tid=2),
            launch(15, 100, tid=2),
            kernel(50, 4, 100),
        ]
    )
    assert dict(found.call_us) == {1: 4}


def test_the_innermost_range_counts():
    ranges = [("enplace#0", 0, 100), ("enplace#1", 10, 20)]
    found = join_kernels(
        [*(span("user_annotation", *each) for each in ranges), launch(15, 1), kernel(50, 4, 1)]
    )
    assert dict(found.call_us) == {1: 4}


def test_kernels_that_run_at_the_same_time_count_once():
    call = span("user_annotation", "enplace#0", 0, 10)
    found = join_kernels([call, launch(5, 1), launch(6, 2), kernel(50, 40, 1), kernel(60, 40, 2)])
    assert dict(found.call_us) == {0: 50}
    assert dict(found.call_kernels) == {0: 2}


def test_a_kernel_without_its_launch_is_found_by_the_op_around_it():
    found = join_kernels(
        [
            span("user_annotation", "enplace#3", 0, 10),
            span("cpu_op", "aten::mm", 2, 5, **{"External id": 9}),
            kernel(50, 4, 100, **{"External id": 9}),
        ]
    )
    assert dict(found.call_us) == {3: 4}


def test_kernels_that_no_call_launched_are_told_apart():
    found = join_kernels(
        [span("user_annotation", "enplace#0", 0, 10), launch(15, 1), kernel(50, 4, 1)]
    )
    assert found.unjoined_us == 4
    assert not found.call_us
