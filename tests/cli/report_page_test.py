"""The page of attnbench report as a whole, in a browser: its sections, its filters, its address, and every
screen, keyboard and name that it has to take."""

import copy
import unittest

from pages import PageTest
from result_files import HOSTILE, quantised_results, result, sweep_results, timed
from tool import thorough


class Page(PageTest):
    def test_every_view_is_drawn_or_says_what_is_missing(self):
        cascade = [result("FLASH_ATTN", 4096, 100.0 if mode == "never" else 3000.0 / prefix,
                          "cascade", **{"cascade.common_prefix_len": prefix, "cascade.mode": mode})
                   for prefix in (16, 64, 256) for mode in ("never", "always")]  # fmt: skip
        dcp = [result("FLASH_ATTN", 4096, 50.0 + 10 * ranks, "dcp", **{"dcp.world_size": ranks})
               for ranks in (1, 2, 4)]  # fmt: skip
        self.open([*sweep_results(), *cascade, *dcp])
        self.assertEqual(self.points("roofline"), 15)
        self.assertIn("100 GB/s", self.text("#roofline-view"))
        self.assertIn("1.00 TFLOP/s", self.text("#roofline-view"))
        self.assertEqual(self.points("accuracy"), 15, "of those that have a speed")
        lines = self.js(
            "[...document.querySelectorAll('#sweep path.line')].map("
            "line => line.getAttribute('d').split('L').length)"
        )
        self.assertEqual(lines[:2], [3, 3], "a line for each backend through its three lengths")
        self.assertIn("64 tokens", self.text("#cascade-view"))
        self.assertIn("1.17×", self.text("#dcp-view"), "the time of two ranks over that of one")
        self.assertEqual(self.js("document.querySelectorAll('#steps .bars li').length"), 15)
        self.assertGreater(
            self.js("document.querySelectorAll('#samples circle.sample').length"), 19
        )
        self.assertIn("'a b'", self.text("#environment .command code"))
        self.open([{**r, "timing": None, "throughput": None} for r in sweep_results()])
        self.assertIn("no times", self.text("#accuracy .absent"))
        self.open([])
        self.assertIn("No result", self.text("#overview .absent"))

    def sections(self):
        return self.js("[...document.querySelectorAll('main > section')].map(s => s.id)")

    def test_sections_stand_only_where_there_is_something_in_them(self):
        self.open([{**r, "timing": None, "throughput": None} for r in sweep_results()])
        self.assertEqual(self.sections(), ["overview", "sweep", "accuracy", "environment"])
        links = self.js("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
        self.assertEqual(links, self.sections())
        self.open(sweep_results())
        self.assertFalse({"cascade", "dcp", "quantization", "compare"} & set(self.sections()))
        self.assertTrue({"peers", "roofline", "samples", "steps"} <= set(self.sections()))
        self.open([])
        self.assertEqual(self.sections(), ["overview", "environment"])
        self.open(quantised_results())
        self.click("[data-value=FLASH_ATTN]")
        self.js("document.getElementById('search').value = 'auto'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertIn("Nothing is quantised", self.text("#quantization .absent"))

    def search(self):
        return self.js("location.search")

    def test_the_address_keeps_the_filters(self):
        self.open(sweep_results(), sweep_results())
        self.assertEqual(self.search(), "")
        self.click("[data-value=TRITON_ATTN]")
        self.click("[data-value=passed]")
        self.js("document.getElementById('search').value = 's4096'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertEqual(self.search(), "?search=s4096&status=passed&backend=TRITON_ATTN")
        self.browser.open(self.js("location.pathname + location.search"))
        self.assertEqual(self.shown("case"), ["sweep/q1s4096"])
        self.assertEqual(self.js("document.getElementById('search').value"), "s4096")
        self.assertEqual(
            self.js("document.querySelector('[data-value=TRITON_ATTN]').ariaPressed"), "true"
        )
        self.click("#filters .line > button")
        self.assertEqual((self.search(), len(self.shown("case"))), ("", 8))

    def test_an_address_that_asks_for_what_is_not_there_shows_everything(self):
        self.open(sweep_results())
        asked = "?status=fine&backend=NONE&scenario=other&file=7"
        self.browser.open(f"{self.dir / 'page.html'}{asked}")
        self.assertEqual(self.text("#count"), "8 results")

    def test_filters_select_for_every_view(self):
        self.open(sweep_results())
        self.click("[data-value=TRITON_ATTN]")
        self.assertEqual(set(self.shown("backend")), {"TRITON_ATTN"})
        self.assertEqual((self.points("roofline"), self.text("#count")), (3, "4 of 8 results"))
        self.click("[data-value=passed]")
        self.assertEqual(set(self.shown("status")), {"passed"})
        self.assertEqual(self.text("[data-value=unsupported] .count"), "1", "of the chosen backend")
        self.js("document.getElementById('search').value = 'SWEEP s4096'")
        self.js("document.getElementById('search').dispatchEvent(new Event('input'))")
        self.browser.wait_for("document.querySelectorAll('tr.result').length === 1")
        self.assertEqual(self.shown("case"), ["sweep/q1s4096"])
        self.click("#filters .line > button")
        self.assertEqual((len(self.shown("case")), self.text("#count")), (8, "8 results"))

    def test_the_browser_obeys_the_policy(self):
        self.open(sweep_results())
        self.js("""(() => {
          const base = document.createElement('base'); base.href = 'https://other.example/';
          document.head.append(base);
          const form = document.createElement('form'); form.action = 'https://other.example/';
          document.body.append(form); form.submit(); })()""")
        self.assertTrue(self.js("document.baseURI.startsWith('file:')"))
        self.browser.wait_for_complaints(2)
        complaints = " ".join(self.browser.complaints)
        self.browser.complaints.clear()
        self.assertIn("base-uri 'none'", complaints)
        self.assertIn("form-action 'none'", complaints)
        self.assertNotIn("asked the network", complaints)

    def test_the_keyboard_reaches_everything(self):
        self.open(sweep_results())
        reached = set()
        for _ in range(80):
            self.browser.press("Tab")
            name = self.js(
                """(e => { if (e.tabbed) return null; e.tabbed = true;
              return e.id || e.dataset.column || e.dataset.value ||
                     e.closest('main > section')?.id + ' ' + e.tagName })(document.activeElement)"""
            )
            if name is None:
                break
            reached.add(name)
        for wanted in ("search", "passed", "FLASH_ATTN", "time", "overview BUTTON", "roofline svg",
                       "sweep SELECT", "sweep svg", "accuracy svg", "samples SELECT",
                       "environment BUTTON"):  # fmt: skip
            self.assertIn(wanted, reached)
        self.js("document.querySelector('#roofline .view > svg').focus()")
        self.browser.press("ArrowRight")
        first = self.text("#tip strong")
        self.browser.press("ArrowRight")
        self.assertNotEqual([first, self.text("#tip dd")], [self.text("#tip strong"), ""])
        self.assertIn("FLOP/s", self.text("#live"), "a screen reader hears what the tooltip says")
        self.browser.press("Enter")
        self.assertEqual(self.js("document.activeElement.getAttribute('aria-expanded')"), "true")

    def test_hostile_names_are_shown_as_they_are(self):
        results = sweep_results()
        for entry in results:
            entry.update(case=HOSTILE + entry["case"], backend=entry["backend"] + HOSTILE,
                         scenario=HOSTILE, reasons=[HOSTILE], repro=HOSTILE)  # fmt: skip
            entry["id"] = "/".join(entry[part] for part in ("scenario", "case", "backend"))
        self.open(results, results)
        self.click("tr.result .toggle")
        self.assertIn(HOSTILE, self.text("tr.detail .reasons"))
        self.assertIn(HOSTILE, self.text("#compare tbody"))
        self.assertEqual(self.text("tr.detail code"), HOSTILE)
        self.assertEqual(self.js("typeof window.hacked + document.querySelectorAll('img').length"),
                         "undefined0")  # fmt: skip

    def test_a_phone_scrolls_in_one_direction_and_the_dark_is_dark(self):
        self.browser.resize(390, 844, mobile=True)
        self.open(quantised_results())
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        self.open(sweep_results(), sweep_results())
        self.click("tr.result .toggle")
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        named = [{**entry, "scenario": "a-name-that-is-longer-than-a-telephone-is-wide", "id":
                  entry["id"].replace("sweep/", "a-name-that-is-longer-than-a-telephone-is-wide/")}
                 for entry in sweep_results()]  # fmt: skip
        self.browser.resize(320, 844, mobile=True)
        self.open(quantised_results())
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 320)
        self.browser.resize(390, 844, mobile=True)
        self.open(*([*quantised_results(), *named] for _ in range(3)))
        self.assertLessEqual(self.js("document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.js("""[...document.querySelectorAll('.scroll')]
          .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""), [])
        self.assertEqual(self.js("document.querySelectorAll('.compare, .costs').length"), 2)
        self.assertEqual(self.js("""[...document.querySelectorAll('svg text.note')].filter(e => {
          const text = e.getBoundingClientRect(), svg = e.ownerSVGElement.getBoundingClientRect();
          return text.left < svg.left || text.right > svg.right;}).map(e => e.textContent)"""), [])
        lightness = "d3.lab(getComputedStyle(document.body).backgroundColor).l"
        for scheme, is_dark in (("dark", True), ("light", False)):
            self.browser.call("Emulation.setEmulatedMedia",
                              features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
            self.assertEqual(self.js(lightness) < 50, is_dark)

    def test_nothing_is_cut_off_on_paper(self):
        long = [result(backend, 4096, 20.0 + i, "smoke-decode",
                       **{"triton.path": "3d", "kv_cache.block_size": 16 + i})
                for i in range(9) for backend in ("FLASH_ATTN_IX", "FLASHMLA_SPARSE")]  # fmt: skip
        after = copy.deepcopy(long)
        for entry in after:
            timed(entry, 900 * entry["timing"]["median_us"])
        self.browser.resize(718, 1000)  # A4 without its margins
        self.addCleanup(self.browser.call, "Emulation.setEmulatedMedia", media="")
        self.browser.call("Emulation.setEmulatedMedia", media="print")
        self.open(long, after)
        self.assertIn("past the threshold", self.text("#compare tbody"))
        cut = self.js("""[...document.querySelectorAll('.scroll, body')]
          .filter(e => e.scrollWidth > e.clientWidth + 1)
          .map(e => [e.querySelector('table')?.className, e.scrollWidth, e.clientWidth])""")
        self.assertEqual(cut, [])

    @thorough
    def test_five_thousand_results_are_shown(self):
        results = [result(backend, 128 * (i + 1), 10.0 + i % 97, f"s{i % 20}",
                          **{"kv_cache.block_size": size})
                   for i in range(500) for backend in ("A", "B", "C", "D", "E")
                   for size in (16, 32)]  # fmt: skip
        self.open(results)
        self.assertEqual(self.text("#count"), "5,000 results")
        self.assertEqual(self.points("roofline"), 5000)
        self.assertEqual(len(self.shown("case")), 50)
        size = (self.dir / "page.html").stat().st_size / 2**20
        drawn = self.js("document.documentElement.dataset.ready")
        print(
            f"\n5,000 results, a page of {size:.1f} MiB: drawn {drawn} ms after its start"
        )


if __name__ == "__main__":
    unittest.main()
