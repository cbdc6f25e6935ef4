import torch

from scalerlt.measure.memory import OnPhase, measure_memory

KIB = 1024


def report_of_a_step():
    weight = torch.ones(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    calls = []

    def step(on_phase: OnPhase) -> None:
        calls.append(None)
        with on_phase("forward"):
            x = torch.ones(64, 64)  # 16 KiB, saved for the weight's gradient
            loss = (x @ weight).exp().sum()  # exp keeps its output, 16 KiB
        with on_phase("backward"):
            loss.backward()
        with on_phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return measure_memory(step, device=torch.device("cpu"), parameters=[weight]), len(calls)


def test_every_kind_of_memory_of_a_cpu_step():
    report, calls = report_of_a_step()
    assert calls == 2
    assert report.saved_bytes == 32 * KIB
    assert set(report.phases) == {"forward", "backward", "optimizer"}
    # forward: x, the product and its exp, or, once the product is gone, x and exp
    assert 48 * KIB <= report.phases["forward"].live < 49 * KIB
    assert report.step.live == max(peaks.live for peaks in report.phases.values())
    assert report.phases["optimizer"].live < report.step.live


def test_a_cpu_has_no_cuda_figures_and_they_are_not_zero():
    report, _ = report_of_a_step()
    assert report.step.cuda_allocated is None
    assert report.step.cuda_reserved is None
    assert "cpu" in report.cuda_reason


def test_resident_figures_come_with_their_baseline():
    report, _ = report_of_a_step()
    assert (report.step.rss is None) == (report.rss_reason is not None)
    if report.step.rss is not None:
        assert report.step.rss >= report.phases["forward"].rss > 0
        assert report.rss_baseline > 0
