"""What the kernel-level check calls a fault; the kernels themselves run on a GPU host."""

from evalharness.capture.kernel_check import KernelRow, faults

EAGER = KernelRow("eager", 0.002, 0.01, None)
STOCK = KernelRow("stock", 0.9, 3.0, False)


def test_a_stale_plan_is_expected_of_stock_and_no_fault() -> None:
    assert faults([EAGER, STOCK, KernelRow("patched", 0.002, 0.01, True)]) == []


def test_a_fresh_plan_that_errs_or_is_not_in_the_graph_is_a_fault() -> None:
    assert faults([EAGER, STOCK, KernelRow("patched", 0.9, 3.0, None)]) == ["patched: relative error 0.9, eager 0.002"]
    assert "not in the graph" in faults([EAGER, STOCK, KernelRow("patched", 0.002, 0.01, False)])[0]


def test_a_kernel_that_errs_without_graphs_proves_nothing() -> None:
    assert "eager" in faults([KernelRow("eager", 0.9, 3.0, None), STOCK, KernelRow("patched", 0.9, 3.0, True)])[0]
