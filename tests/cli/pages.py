"""The page of attnbench report in a real browser, for tests of what it shows."""

import json

from browser import Browser, find_browser
from result_files import result_file
from tool import TIME_LIMIT_S, ToolTest, skip_without

SHOWN = "[...document.querySelectorAll('tr.result')]"


class PageTest(ToolTest):
    """Skipped, or failed in a CI, where there is no browser."""

    @classmethod
    def setUpClass(cls):
        path = find_browser() or skip_without("browser, e.g. chromium-headless-shell")
        cls.browser = Browser(path, TIME_LIMIT_S)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.browser.resize(1280, 900)
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints, []))

    def open(self, *files):
        names = []
        for i, results in enumerate(files):
            names.append(self.write(f"{i}.json", json.dumps(result_file(results))))
        self.expect(0, "report", *names, "-o", "page.html")
        self.browser.open(self.dir / "page.html")
        self.assertEqual(self.browser.complaints, [])

    def js(self, expression):
        return self.browser.run(expression)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector):
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def shown(self, column):
        return self.js(f"""{SHOWN}.map(r => r.querySelector('[data-label="{column}"]').textContent)""")

    def points(self, view):
        return self.js(f"document.querySelectorAll('#{view} .view > svg path.point').length")

    def choose(self, view, label, value):
        self.js(f"""(() => {{
          const select = [...document.querySelectorAll('#{view} .chooser')]
            .find(c => c.textContent.startsWith('{label}')).querySelector('select');
          select.value = '{value}'; select.dispatchEvent(new Event('change')); }})()""")
