// Two result files: what became of every case, by the rules of the gate.

const MOST_ROWS = 60;
const compareState = {file: DATA.files.length - 1, rows: MOST_ROWS, kind: ""};

const ratioOf = (verdict) =>
  (verdict.old_us > 0 && verdict.new_us > 0 ? verdict.new_us / verdict.old_us : null);

const geometricMean = (values) => Math.exp(d3.mean(values, Math.log));

function drawCompare(container) {
  if (!DATA.comparisons.length) {
    container.append(absent("One file: attnbench report BEFORE AFTER -o FILE compares two."));
    return;
  }
  const comparison = DATA.comparisons.find((c) => c.file === compareState.file);
  const before = new Map(RESULTS.filter((r) => r.file === 0).map((r) => [r.id, r]));
  const after = new Map(RESULTS.filter((r) => r.file === comparison.file).map((r) => [r.id, r]));
  const resultOf = (verdict) => after.get(verdict.id) || before.get(verdict.id);
  const selected = comparison.verdicts.filter((v) => selection.takes(resultOf(v)));
  const counts = groupBy(selected, (v) => v.kind);
  const redraw = () => redrawView("compare");
  if (!counts.has(compareState.kind)) compareState.kind = "";

  const files = DATA.comparisons.map((c) => [String(c.file), DATA.files[c.file].path]);
  const ratios = selected.map(ratioOf).filter((ratio) => ratio > 0);
  container.append(element("p", {}, "From ", element("b", {}, DATA.files[0].path), " to ",
    element("b", {}, DATA.files[comparison.file].path),
    ratios.length ? `: geometric mean of the times ${formatChange(geometricMean(ratios))} over ` +
      `${plural(ratios.length, "case")}.` : ": no case has a time in both files."));
  const differences = comparison.differences;
  if (differences.length) {
    container.append(absent("The files are not of the same machine and cases; a gate would " +
      `refuse them: ${differences.slice(0, 4).join("; ")}` +
      (differences.length > 4 ? `; and ${differences.length - 4} more` : "")));
  }
  container.append(element("div", {class: "controls"},
    files.length > 1 ? chooser("File", files, String(comparison.file), (file) => {
      compareState.file = Number(file);
      redraw();
    }) : null,
    element("div", {class: "chips", role: "group", "aria-label": "Verdict"},
      [...counts].map(([kind, list]) => element("button", {type: "button", class: "chip",
        "data-verdict": kind, "aria-pressed": String(compareState.kind === kind), onclick: () => {
          compareState.kind = compareState.kind === kind ? "" : kind;
          redraw();
        }}, element("i", {class: `dot ${kind}`, "aria-hidden": "true"}), kind, " ",
        element("span", {class: "count"}, String(list.length)))))));
  const shown = selected.filter((v) => !compareState.kind || v.kind === compareState.kind);
  drawRatios(container, shown, resultOf);
  container.append(...compareTable(shown.slice(0, compareState.rows), before, after, resultOf));
  if (shown.length > compareState.rows) {
    const showAll = () => { compareState.rows = Infinity; redraw(); };
    container.append(element("p", {class: "more"},
      `${plural(shown.length - compareState.rows, "more case")} `,
      element("button", {type: "button", onclick: showAll}, "Show all of them")));
  }
}

function drawRatios(container, verdicts, resultOf) {
  const timed = verdicts.filter((v) => ratioOf(v) > 0);
  if (!timed.length) return;
  const ratios = timed.map(ratioOf);
  const reach = Math.max(1.1, d3.max(ratios), 1 / d3.min(ratios)) * 1.03;
  const chart = plot(container, {
    label: "Time after over time before", height: 300,
    x: {scale: d3.scaleLog().domain(logDomain(timed.map((v) => v.old_us), 1.4)),
        label: "time before", format: (value) => tickText(METRICS.time, value)},
    y: {scale: d3.scaleLog().base(2).domain([1 / reach, reach]), label: "after / before",
        room: 24, ticks: [1, 0.5, 2, 0.25, 4, 0.8, 1.25, 0.9, 1.1, 0.7, 1.5, 0.95, 1.05]
          .filter((tick) => tick > 1 / reach && tick < reach), format: (value) => `${value}×`},
  });
  referenceLine(chart, 1, "above: slower");
  drawPoints(chart, timed.map((v) => ({
    x: v.old_us, y: ratioOf(v), color: v.kind, title: v.id, result: resultOf(v),
    lines: [["verdict", v.kind], ["before", formatTime(v.old_us)], ["after", formatTime(v.new_us)],
            ["change", formatChange(ratioOf(v))], ["rule", v.rule]]})));
}

function compareTable(verdicts, before, after, resultOf) {
  const error = (result) => formatRatio(result?.error?.err_ratio);
  const time = (us, result) => formatTime(us) + (result && us > 0 ? timeMark(result) : "");
  const quant = (result) => (result && quantOf(result) !== null ?
    formatShare(quantOf(result)) + quantMark(result) : NONE);
  const either = verdicts.flatMap((v) => [before.get(v.id), after.get(v.id)]).filter(Boolean);
  const isQuantised = either.some((result) => quantOf(result) !== null);
  const table = simpleTable(
    ["verdict", "case", "backend", "before", "after", "change", "err_ratio", ...(isQuantised ? ["quant"] : []),
     "rule"],
    verdicts.map((v) => [
      element("span", {class: `verdict ${v.kind}`}, v.kind), breakable(titleOf(resultOf(v))),
      resultOf(v).backend, time(v.old_us, before.get(v.id)),
      time(v.new_us, after.get(v.id)), formatChange(ratioOf(v)),
      `${error(before.get(v.id))} → ${error(after.get(v.id))}`,
      ...(isQuantised ? [`${quant(before.get(v.id))} → ${quant(after.get(v.id))}`] : []), v.rule]),
    {class: "plain compare", label: "verdicts"});
  return [table, ...markHints(either, ["time", "quant"])];
}
