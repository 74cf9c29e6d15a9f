"""Timings and rates for result files that tests make up: numbers that agree with each other."""

import math
import statistics


def quantile(samples, share):
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def summary(samples):
    """What the tool says of samples."""
    mean = sum(samples) / len(samples)
    stdev = statistics.stdev(samples)
    return {
        "median_us": quantile(samples, 0.5), "min_us": min(samples),
        "q1_us": quantile(samples, 0.25), "q3_us": quantile(samples, 0.75), "mean_us": mean,
        "stdev_us": stdev, "noise": 1.2533 * stdev / math.sqrt(len(samples)) / mean,
        "samples_us": list(samples),
    }  # fmt: skip


def timing_of(samples):
    """A timing of one step, in one go, on warm caches."""
    made = summary(samples)
    return {**made, "l2": "warm", "mode": "stream", "launch_overhead_us": 0.1, "steps": [],
            "total_us": made["median_us"]}  # fmt: skip


def rates(throughput, median_us):
    """The rates of the same work in another time; ceilings, where there are some, as they are."""
    made = dict(throughput)
    made.update(tflops=made["flops"] / median_us * 1e-6, gbps=made["bytes"] / median_us * 1e-3)
    if made.get("ceiling_tflops") and made.get("ceiling_gbps"):
        compute_us = made["flops"] / made["ceiling_tflops"] * 1e-6
        memory_us = made["bytes"] / made["ceiling_gbps"] * 1e-3
        made["bound"] = "memory" if memory_us >= compute_us else "compute"
        made["roofline_pct"] = 100 * max(compute_us, memory_us) / median_us
    if "physics_pct" in made:
        made["physics_pct"] = min(made["roofline_pct"], 100.0)
    return made


def retime(result, samples):
    """Gives a result other samples and what follows from them."""
    result["timing"] = timing_of(samples)
    if result.get("throughput"):
        result["throughput"] = rates(result["throughput"], result["timing"]["median_us"])
    return result
