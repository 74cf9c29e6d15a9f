"""Traces as other tools leave them, through the real binary: CSVs, results of serving benchmarks, logs; the
times of arrival, and many steps of one trace with what they come to together.
"""

import json
import random
import re
import unittest

from tool import ROOT, ToolTest, strict_json

LENGTHS = [(40, 6), (100, 3), (7, 9), (300, 2), (64, 5)]
HEAD = """\
schema: 1
name: steps
attention: {type: decoder, num_heads: 2, num_kv_heads: 1, head_size: 32, dtype: bfloat16}
"""
BURSTGPT = ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"]


def burstgpt(times):
    rows = [f"{t},17,1.5,ChatGPT,{p},{a},{p + a},Conversation log" for t, (p, a) in zip(times, LENGTHS)]
    return "\n".join([*BURSTGPT, "3.5,,0.1,GPT-4,90,0,90,API log", *rows]) + "\n"


def azure():
    rows = [f"2023-11-16 18:17:0{i}.5000000,{p},{a}" for i, (p, a) in enumerate(LENGTHS)]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"


class TraceTest(ToolTest):
    def batches(self, trace, *, code=0, **keys):
        """The batches of the cases that a trace gives, as explain resolves them: by case."""
        words = ", ".join(f"{key}: {value}" for key, value in keys.items())
        self.write("case.yaml", HEAD + f"batch: {{trace: {trace}, {words}}}\n")
        # A backend that refuses every case resolves them and computes nothing.
        outcome = self.expect(code or 3, "run", "case.yaml", "--backend", "CUDNN", "--device", "cpu",
                              "--no-timing", "--json", "-")  # fmt: skip
        if code:
            return outcome.err
        results = strict_json(outcome.out)["results"]
        return {one["case"]: [(row["count"], row["query_len"], row["seq_len"])
                              for row in one["problem"]["batch"]] for one in results}  # fmt: skip


class Formats(TraceTest):
    def same_as_azure(self, name, text, **keys):
        self.write("azure.csv", azure())
        self.write(name, text)
        for step in (1, 4, 11):
            own = self.batches(name, requests=3, step=step, max_batched_tokens=64, **keys)
            self.assertEqual(own, self.batches("azure.csv", format="azure_llm", requests=3, step=step,
                                               max_batched_tokens=64))  # fmt: skip

    def test_burstgpt_without_its_failures_is_the_same_trace(self):
        self.same_as_azure("burst.csv", burstgpt([5, 6, 7, 8, 9]), format="burstgpt")

    def test_a_csv_is_read_by_the_names_of_its_columns(self):
        rows = "".join(f'"a, b",{a}.0,{p}\n' for p, a in LENGTHS)
        self.same_as_azure("s.csv", "text,completion_tokens,prompt_tokens\n" + rows, format="csv")

    def test_results_of_the_serving_benchmarks_are_traces(self):
        lists = {"input_lens": [9] + [p for p, _ in LENGTHS], "output_lens": [0] + [a for _, a in LENGTHS]}
        vllm = {"date": "20260901-101010", "num_prompts": 5, "request_rate": "inf", "errors": [""] * 6,
                "start_times": [1.0 + i for i in range(6)], **lists}  # fmt: skip
        self.same_as_azure("vllm.json", json.dumps(vllm, indent=1), format="vllm_bench")
        halves = [{k: v[:3] for k, v in lists.items()}, {k: v[3:] for k, v in lists.items()}]
        self.same_as_azure("sglang.jsonl", "".join(json.dumps(one) + "\n" for one in halves),
                           format="sglang_bench")  # fmt: skip

    def test_the_log_of_sglang_is_a_trace_in_the_order_of_arrival(self):
        lines, finished = ["not JSON"], []
        for i, (p, a) in enumerate(LENGTHS):
            stamp = f"2026-09-01T10:00:0{i}.25"
            lines.append(json.dumps({"timestamp": stamp, "event": "request.received", "rid": f"r{i}"}))
            finished.append(json.dumps({"timestamp": "2026-09-01T10:01:00", "event": "request.finished",
                                        "rid": f"r{i}", "out": {"meta_info": {
                                            "prompt_tokens": p, "completion_tokens": a}}}))  # fmt: skip
        self.same_as_azure("server.log", "\n".join(lines + finished[::-1]), format="sglang_log")

    def test_the_log_of_vllm_counts_tokens_and_the_deltas_of_streams(self):
        lines, answers = ["(APIServer pid=7) INFO 09-01 09:59:59 [api_server.py:5] Started"], []
        for i, (p, a) in enumerate(LENGTHS):
            start = f"(APIServer pid=7) DEBUG 09-01 10:00:0{i} [entrypoints/logger.py:44] "
            lines += [f"{start}Request chatcmpl-{i} details: prompt: 'a prompt_token_ids: [1, 2]', "
                      f"prompt_token_ids: {list(range(p))}, prompt_embeds shape: None.",
                      f"{start}Received request chatcmpl-{i}: params: SamplingParams(n=1), lora_request: None."]
            answer = "INFO 09-01 10:01:00 [logger.py:90] Generated response "
            streamed = [f"{answer}chatcmpl-{i} (streaming delta): output: 'x', output_token_ids: [{t}], "
                        "finish_reason: None" for t in range(a)]
            whole = f"{answer}chatcmpl-{i}: output: 'x', output_token_ids: {tuple(range(a))}, finish_reason: stop"
            answers += [*streamed, f"{answer}chatcmpl-{i} (streaming complete): output: 'x', "
                        "output_token_ids: None, finish_reason: streaming_complete"] if i % 2 else [whole]
        unfinished = "INFO 09-01 10:00:02 [logger.py:39] Received request b: prompt: 'x', prompt_token_ids: [1]."
        self.same_as_azure("server.log", "\n".join(lines + [unfinished] + answers), format="vllm_log")
        timed = self.batches("server.log", format="vllm_log", arrivals="trace", step_ms=1000, step=1,
                             max_batched_tokens=1000)
        self.assertEqual(len(timed["trace"] if "trace" in timed else next(iter(timed.values()))), 1)

    def test_faulty_files_are_refused_by_line(self):
        for name, text, words in (
            ("burstgpt", "a,b\n1,2\n", "f:1: expected a header with columns"),
            ("csv", "prompt_len,output_len\n3,x\n", "f:2: expected whole numbers of tokens, found '3,x'"),
            ("csv", "prompt_len,output_len\n3\n", "f:2: expected whole numbers"),
            ("csv", "prompt_len,output_len\n3,0\n", "expected a trace of requests, found none"),
            ("vllm_bench", '{"completed": 3}', "expected lists input_lens and output_lens"),
            ("vllm_bench", '{"input_lens": [1], "output_lens": []}', "of equal length"),
            ("sglang_bench", '{"input_lens": [1], "output_lens": [1]}\nx', "f:2: expected a JSON object"),
            ("sglang_log", '{"event": "request.finished", "out": {}}', "out.meta_info with prompt_tokens"),
            ("vllm_log", "INFO 09-01 10:00:00 [logger.py:9] Received request a: params: p.", "among 1 requests"),
            ("vllm_log", "INFO 09-01 10:00:00 [api.py:9] Started", "expected a trace of requests, found none"),
            ("vllm_text", "x", "batch.format: expected one of azure_llm, mooncake, burstgpt"),
        ):
            self.write("f", text)
            self.assertIn(words, self.batches("f", format=name, code=2))


class Arrivals(TraceTest):
    def step(self, step, times=(0, 1, 2, 3, 4), **keys):
        self.write("b.csv", burstgpt(times))
        (batch,) = self.batches("b.csv", format="burstgpt", step=step, max_batched_tokens=1000, **keys).values()
        return batch

    def test_a_request_runs_from_the_step_after_its_arrival(self):
        # Seed 3 starts at line 1 of 5. A step a second: each request finds those before it.
        first = self.step(1, arrivals="trace", step_ms=1000)
        second = self.step(2, arrivals="trace", step_ms=1000)
        self.assertEqual(len(first), 1)
        self.assertEqual(sum(row[0] for row in second), 2)
        self.assertEqual(first[0][1], first[0][2])

    def test_a_rate_that_is_higher_fills_the_batch(self):
        slow = self.step(40, arrivals="trace", rate=1, step_ms=20)
        fast = self.step(40, arrivals="trace", rate=500, step_ms=20)
        self.assertLess(sum(r[0] for r in slow), 3)
        self.assertGreater(sum(r[0] for r in fast), 20)
        most = self.step(40, arrivals="trace", rate=500, step_ms=20, requests=7)
        self.assertLessEqual(sum(r[0] for r in most), 7)

    def test_random_arrivals_follow_their_seed_and_need_a_rate(self):
        one = [self.step(60, arrivals="poisson", rate=100, seed=seed) for seed in (1, 1, 2, 6)]
        self.assertEqual(one[0], one[1])
        self.assertTrue(any(one[0] != other for other in one[2:]))
        self.write("b.csv", burstgpt([0, 1, 2, 3, 4]))
        for keys, words in (({"arrivals": "poisson"}, "expected the key 'rate'"),
                            ({"rate": 3}, "batch.rate: expected arrivals: trace or poisson"),
                            ({"arrivals": "sometimes"}, "one of closed, trace, poisson"),
                            ({"arrivals": "poisson", "rate": 0}, "a number > 0")):  # fmt: skip
            self.assertIn(words, self.batches("b.csv", format="burstgpt", code=2, **keys))

    def test_times_that_are_not_known_are_an_error(self):
        self.write("n.csv", "prompt_len,output_len\n3,4\n5,6\n")
        self.assertIn("request 1 of the trace has no time of arrival",
                      self.batches("n.csv", format="csv", arrivals="trace", code=2))  # fmt: skip
        self.write("b.csv", burstgpt([1, 1, 1, 1, 1]))
        self.assertIn("come at the same time",
                      self.batches("b.csv", format="burstgpt", arrivals="trace", code=2))  # fmt: skip


class Steps(TraceTest):
    KEYS = {"format": "burstgpt", "requests": 4, "max_batched_tokens": 128}

    def test_a_sample_takes_a_step_from_each_part(self):
        self.write("b.csv", burstgpt([0, 1, 2, 3, 4]))
        sampled = self.batches("b.csv", steps="sample 5", step=50, **self.KEYS)
        numbers = [int(re.fullmatch(r"trace-step(\d+)", case)[1]) for case in sampled]
        self.assertEqual([(n - 1) // 10 for n in numbers], [0, 1, 2, 3, 4])
        for number, batch in zip(numbers, sampled.values()):
            self.assertEqual(batch, *self.batches("b.csv", step=number, **self.KEYS).values())
        self.assertEqual(sampled, self.batches("b.csv", steps="sample 5", step=50, **self.KEYS))
        other = self.batches("b.csv", steps="sample 5", step=50, seed=5, **self.KEYS)
        self.assertNotEqual(list(sampled), list(other))

    def test_wrong_samples_are_refused(self):
        self.write("b.csv", burstgpt([0, 1, 2, 3, 4]))
        for steps in ("'sample 0'", "all", "5", "'sample 51'", "'sample 5 '"):
            self.assertIn("batch.steps: expected 'sample N'",
                          self.batches("b.csv", steps=steps, step=50, code=2, **self.KEYS))  # fmt: skip

    def test_steps_are_weighed_by_their_time_and_the_worst_named(self):
        self.write("b.csv", burstgpt([0, 1, 2, 3, 4]))
        self.write("case.yaml", HEAD + "batch: {trace: b.csv, format: burstgpt, requests: 4, step: 50,"
                   " max_batched_tokens: 128, steps: sample 5}\n")  # fmt: skip
        out = self.expect(0, "run", "case.yaml", "--backend", "FLASH_ATTN", "--device", "cpu", "--samples", 3,
                          "--json", "r.json", "--markdown", "r.md", "--color", "never").out  # fmt: skip
        results = strict_json((self.dir / "r.json").read_text())["results"]
        tokens = sum(row["count"] * row["query_len"] for r in results for row in r["problem"]["batch"])
        times = {r["case"][len("trace-step"):]: r["timing"]["median_us"] for r in results}
        expected = tokens / sum(times.values()) * 1e6
        line = re.search(r"^steps/trace +FLASH_ATTN +5 +(\S+) +\S+ +\S+ +(.*)$", out, re.M)
        self.assertIsNotNone(line, out)
        self.assertAlmostEqual(float(line[1]) / expected, 1, delta=1e-3)
        worst = sorted(times, key=times.get, reverse=True)[:3]
        self.assertEqual(re.findall(r"(\d+) \(", line[2]), worst)
        self.assertIn("| steps/trace | FLASH_ATTN | 5 |", (self.dir / "r.md").read_text())

    def test_the_example_of_the_documents_runs(self):
        text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8").partition("## Traffic")[2]
        self.write("example.yaml", re.search(r"```yaml\n(.*?)```", text, re.S)[1])
        generator, time, rows = random.Random(1), 0.0, []
        for _ in range(200):
            time += generator.expovariate(2)
            rows.append(f"{time:.3f},ChatGPT,{generator.randint(10, 900)},{generator.randint(5, 300)},0,API log")
        header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
        self.write("BurstGPT_1.csv", "\n".join([header, *rows]) + "\n")
        out = self.expect(0, "validate", "example.yaml").out
        self.assertIn("50", out)
        # With fewer heads and fewer, earlier steps, which a CPU gets through in a second.
        few = [word for key in ("attention.num_heads=2", "attention.num_kv_heads=1", "attention.head_size=32",
                                "batch.step=300", "batch.steps=sample 3", "timing.min_time_ms=1")
               for word in ("--set", key)]  # fmt: skip
        out = self.expect(0, "run", "example.yaml", "--device", "cpu", "--backend", "FLASH_ATTN", "--samples",
                          3, *few, "--color", "never").out  # fmt: skip
        self.assertRegex(out, r"an-hour/trace +FLASH_ATTN +3 +\d")


if __name__ == "__main__":
    unittest.main()
