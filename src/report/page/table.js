// The overview: a table that sorts by any column, and everything about a result under its row.

const PAGE_OF_ROWS = 50;

const COLUMNS = [
  {name: "case", of: titleOf, text: titleOf, compare: byText, class: "case"},
  {name: "backend", of: (r) => r.backend, text: (r) => r.backend, compare: byText},
  {name: "status", of: (r) => STATUSES.indexOf(r.status), text: (r) => r.status},
  {name: "max_abs", of: METRICS.max_abs.of, text: (r) => formatError(METRICS.max_abs.of(r))},
  {name: "err_ratio", of: METRICS.err_ratio.of,
   text: (r) => formatRatio(METRICS.err_ratio.of(r))},
  {name: "quant", of: quantOf, text: (r) => formatShare(quantOf(r)) + quantMark(r)},
  {name: "time", of: timeOf, text: (r) => formatTime(timeOf(r)) + timeMark(r)},
  ...RATES.map(({name, of, format}) => ({name, of, text: (r) => format(of(r))})),
  {name: "roofline", of: METRICS.roofline.of, text: (r) => formatPercent(METRICS.roofline.of(r))},
  {name: "noise", of: METRICS.noise.of,
   text: (r) => formatPercent(METRICS.noise.of(r)) + noiseMark(r)},
];
const isNumeric = (column) => COLUMNS.indexOf(column) >= 3;

const tableState = {sort: "status", descending: false, rows: PAGE_OF_ROWS, open: new Set()};

/// Those that have a value in any of the results.
function columnsOf(results) {
  return COLUMNS.filter((column) => results.some((r) => column.of(r) !== null));
}

function sortedResults() {
  const column = COLUMNS.find((c) => c.name === tableState.sort);
  const compare = column.compare || ((a, b) => a - b);
  const sign = tableState.descending ? -1 : 1;
  // What has no value stands last, whichever way the table is sorted.
  return selection.results().map((result, i) => ({result, i, value: column.of(result)}))
    .sort((a, b) => {
      const missing = (a.value === null) - (b.value === null);
      if (missing || a.value === null) return missing || a.i - b.i;
      return sign * compare(a.value, b.value) || a.i - b.i;
    })
    .map((entry) => entry.result);
}

function headerCell(column) {
  const sorted = tableState.sort === column.name;
  const order = sorted ? (tableState.descending ? "descending" : "ascending") : "none";
  const arrow = sorted ? (tableState.descending ? "▼" : "▲") : "";
  return element("th", {scope: "col", "aria-sort": order, class: isNumeric(column) ? "n" : ""},
    element("button", {type: "button", class: "sort", "data-column": column.name, onclick: () => {
      tableState.descending = sorted && !tableState.descending;
      tableState.sort = column.name;
      drawTable();
      document.querySelector(`[data-column="${column.name}"]`).focus();
      announce(`sorted by ${column.name}, ${tableState.descending ? "descending" : "ascending"}`);
    }}, column.name, element("span", {class: "arrow", "aria-hidden": "true"}, arrow)));
}

function resultRow(result, columns) {
  const isOpen = tableState.open.has(result);
  const row = element("tr", {class: `result ${result.status}`});
  const toggle = element("button", {type: "button", class: "toggle",
    "aria-expanded": String(isOpen), onclick: () => {
      if (!tableState.open.delete(result)) tableState.open.add(result);
      const now = tableState.open.has(result);
      toggle.setAttribute("aria-expanded", String(now));
      if (now) row.after(detailRow(result, columns.length)); else row.nextElementSibling.remove();
    }}, breakable(titleOf(result)));
  row.append(...columns.map((column) => element("td",
    {class: isNumeric(column) ? "n" : column.class || "", "data-label": column.name},
    column.name === "case" ? toggle :
    column.name === "status" ? element("span", {class: `status ${result.status}`}, result.status) :
    column.name === "backend" ? [element("i", {class: `dot ${colorClass(result.backend)}`,
      "aria-hidden": "true"}), result.backend] : column.text(result))));
  return isOpen ? [row, detailRow(result, columns.length)] : [row];
}

const detailRow = (result, width) => element("tr", {class: "detail"},
  element("td", {colspan: width}, details(result)));

function pairs(title, entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!rows.length) return null;
  return element("section", {}, element("h4", {}, title), element("dl", {},
    rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
}

function errorPairs(title, error) {
  if (!error) return null;
  return pairs(title, [
    ["largest", formatError(error.max_abs)], ["mean", formatError(error.mean_abs)],
    ["relative RMS", formatError(error.rms_rel)], ["err_ratio", formatRatio(error.err_ratio)],
    ["cosine", isNumber(error.cosine) ? `1 − ${formatError(1 - error.cosine)}` : null],
    ["within the limit", formatPercent(error.matched_pct, 3)],
    ["worst at", error.worst_index.length ? `[${error.worst_index.join(", ")}]: ` +
      `${error.worst_actual}, expected ${error.worst_expected}` : null],
    ["rows checked", `${error.checked_rows} of ${error.total_rows}`],
    ["limit", error.limit], ["rule", error.rule]]);
}

function timingPairs(timing) {
  if (!timing) return null;
  return pairs("Time", [
    ["median", formatTime(timing.median_us)],
    ["quartiles", `${formatTime(timing.q1_us)} to ${formatTime(timing.q3_us)}`],
    ["least", formatTime(timing.min_us)],
    ["samples", String(timing.num_samples) + (timing.rounds ? ` in ${timing.rounds} rounds` : "")],
    ["rounds apart", timing.rounds ? formatPercent(100 * timing.round_spread) : null],
    ["whole layer", formatTime(timing.total_us)], ["L2", timing.l2], ["mode", timing.mode],
    ["launch overhead", formatTime(timing.launch_overhead_us)],
    ["SM clock", timing.sm_mhz ? `${timing.sm_mhz.join(" / ")} MHz` : null],
    ["pace", timing.pace],
    ["cycles", isNumber(timing.cycles) ? formatCount(timing.cycles) : null],
    ["throttling", (timing.throttling || []).join(", ")],
    ["waited for cores", isNumber(timing.cpu_wait) ? formatPercent(100 * timing.cpu_wait) : null],
    ...timing.steps.map((step) => [step.name, formatTime(step.median_us)])]);
}

function details(result) {
  const rate = result.throughput;
  const kernels = result.kernels.map((index) => DATA.kernels[index]);
  const fields = Object.entries(result.fields);
  return element("div", {class: "details"},
    result.reasons.length ? element("ul", {class: "reasons"},
      result.reasons.map((reason) => element("li", {}, reason))) : null,
    element("div", {class: "columns"},
      errorPairs("Error of the output", result.error),
      errorPairs("Error of the LSE", result.lse_error),
      errorPairs("Cost of quantising", result.quantization_error),
      clippedOf(result).length ? pairs("Clipped by scales that are too small", clippedOf(result)
        .map(([words, share]) => [words, formatShare(share)])) : null,
      timingPairs(result.timing),
      rate && pairs("Throughput", [
        ["FLOP/s", formatFlops(METRICS.flops.of(result))],
        ["bytes/s", formatBytes(METRICS.bytes.of(result))],
        ["K/V bytes/s", formatBytes(METRICS.kv_bytes.of(result))],
        ["new tokens/s", formatSi(rate.tokens_per_s)], ["FLOPs", formatSi(rate.flops)],
        ["bytes", formatSi(rate.bytes)], ["roofline", formatPercent(rate.roofline_pct)],
        ["share of the peak at the clock", isNumber(rate.peak_pct) ? formatPercent(rate.peak_pct) :
          null],
        ["bound by", rate.bound]]),
      fields.length ? pairs("What varies in the scenario",
        fields.map(([key, value]) => [key, formatValue(value)])) : null),
    kernels.length ? simpleTable(["kernel", "registers", "spilled bytes", "shared bytes"],
      kernels.map((k) => [k.name, `${k.registers}`, `${k.spill_bytes}`, `${k.shared_bytes}`]),
      {label: "kernels"}) : null,
    result.repro ? commandLine(result.repro) : null,
    element("details", {}, element("summary", {}, "What all results of the scenario share"),
      pairs("", Object.entries(DATA.scenarios[result.scenario].common)
        .map(([key, value]) => [key, formatValue(value)]))));
}

const markHints = (results, columns) => markLegend(results, columns)
  .map((sentence) => element("p", {class: "hint"}, sentence));

function drawTable() {
  const results = sortedResults();
  const columns = columnsOf(results);
  const shown = results.slice(0, tableState.rows);
  const more = results.length - shown.length;
  const showMore = (rows) => () => { tableState.rows = rows; drawTable(); };
  document.getElementById("overview-view").replaceChildren(...[
    element("table", {class: "results", "aria-label": "results"},
      element("thead", {}, element("tr", {}, columns.map(headerCell))),
      element("tbody", {}, shown.flatMap((result) => resultRow(result, columns)))),
    results.length ? null : absent("No result is selected."),
    ...markHints(results),
    more > 0 ? element("p", {class: "more"}, `${plural(more, "more result")} `,
      element("button", {type: "button", onclick: showMore(tableState.rows + 4 * PAGE_OF_ROWS)},
        "Show more"), " ",
      element("button", {type: "button", onclick: showMore(Infinity)}, "Show all of them")) : null,
  ].filter(Boolean));
}

/// Opens a result in the table and goes there.
function showResult(result) {
  tooltip.hide();
  tableState.open.add(result);
  const place = sortedResults().indexOf(result);
  if (place < 0) return;
  tableState.rows = Math.max(tableState.rows, place + 1);
  drawTable();
  const row = document.querySelectorAll("tr.result")[place];
  row.scrollIntoView({block: "start"});
  row.querySelector("button").focus({preventScroll: true});
}
