// The results of the page, what is selected of them, and the numbers that can be plotted.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RESULTS = DATA.results;
const STATUSES = ["incorrect", "implausible", "error", "unverified", "skipped", "unsupported",
                  "passed"];
const BACKENDS = [...new Set(RESULTS.map((result) => result.backend))].sort(byText);
const NUM_COLORS = 10;

/// A backend has one colour and one symbol in every plot.
const SERIES = new Map(BACKENDS.map((backend, i) => [backend, i]));
const colorClass = (backend) => `color${(SERIES.get(backend) ?? 0) % NUM_COLORS}`;
const symbolOf = (backend) => d3.symbols[(SERIES.get(backend) ?? 0) % d3.symbols.length];

/// A time that beats the device stands in the details of its result and is compared with nothing.
const isRanked = (result) => result.status !== "implausible";
const timeOf = (result) => (isRanked(result) ? result.timing?.median_us ?? null : null);

/// Flops per second that the device can do at best and bytes that it can move, as measured when
/// the result was. Files of older versions hold only the one that bounds the result, in its share.
function ceilingsOf(result) {
  const rate = result.throughput;
  if (!rate) return {flops: null, bytes: null};
  const share = rate.roofline_pct / 100;
  const of = (stored, own, bound) => {
    if (isNumber(stored)) return stored;
    return share > 0 && rate.bound === bound ? own / share : null;
  };
  const tflops = of(rate.ceiling_tflops, rate.tflops, "compute");
  const gbps = of(rate.ceiling_gbps, rate.gbps, "memory");
  return {flops: tflops && tflops * 1e12, bytes: gbps && gbps * 1e9};
}

const scaled = (value, factor) => (isNumber(value) ? value * factor : null);

/// How the numbers of a metric are written, by the name that a row of the metric table gives.
const FORMATS = {
  time: formatTime, flops: formatFlops, bytes: formatBytes, percent: formatPercent,
  ratio: formatRatio, error: formatError, number: formatSi,
  rate: (value) => `${formatSi(value)}/s`,
};

/// key -> {name, of: result -> number or null, format, better}, in the order of the list.
const METRICS = Object.fromEntries(DATA.metrics.map(({key, name, at: [part, member], factor, format,
                                                      better}) =>
  [key, {name, format: FORMATS[format], better,
         of: (r) => (part === "error" || isRanked(r) ? scaled(r[part]?.[member], factor) : null)}]));

/// The rates of what is counted, each a metric of its own: which of them a result is bound by
/// depends on the ceilings that were measured, so one number for both would change its unit.
const RATES = [METRICS.bytes, METRICS.flops];

/// What quantising costs: relative RMS against attention on nothing quantised; null without.
const quantOf = (result) => {
  const cost = result.quantization_error?.rms_rel;
  return isNumber(cost) ? cost : null;
};

/// What static scales clip: [words, share] of every tensor that loses values.
const CLIPPED = {saturated_query: "the query", saturated_key: "the keys",
                 saturated_value: "the values", saturated_output: "the output"};
const clippedOf = (result) => Object.entries(CLIPPED)
  .map(([key, words]) => [words, result.quantization_error?.[key]]).filter(([, share]) => share > 0);
const clippedText = (result) => clippedOf(result)
  .map(([words, share]) => `${formatShare(share)} of ${words}`).join(", ");

/// What makes a number doubtful, as signs behind it: those of the table in a terminal.
const MUCH_WAIT = 0.05;
const MUCH_NOISE = 0.05;
const timeMark = (r) => (!r.timing ? "" : (r.timing.cpu_wait > MUCH_WAIT ? "*" : "") +
  (r.timing.throttling?.length ? "^" : "") + (isRanked(r) ? "" : "?"));
const noiseMark = (r) => (r.timing?.noise > MUCH_NOISE ? "!" : "");
const quantMark = (r) => (clippedOf(r).length ? "!" : "");

/// A sentence for every sign that the results have in these columns.
function markLegend(results, columns = ["time", "noise", "quant"]) {
  const count = (of) => results.filter(of).length;
  const say = (of, text) => (count(of) ? `${text} (${plural(count(of), "result")})` : null);
  const hasTime = (sign) => (r) => timeMark(r).includes(sign);
  return [
    say(hasTime("*"), "time*: other programs had the cores for more than " +
      `${100 * MUCH_WAIT}% of the time`),
    say(hasTime("^"), "time^: the device throttled its clocks"),
    say(hasTime("?"), "time?: faster than the device can be"),
    say(noiseMark, `noise!: above ${100 * MUCH_NOISE}%`),
    say(quantMark, "quant!: scales are too small and clip values"),
  ].filter((text) => text && columns.some((column) => text.startsWith(column)));
}

/// What a point says when one looks at it.
function describe(result) {
  const lines = [["backend", result.backend], ["status", result.status]];
  if (result.timing) {
    const noise = formatPercent(METRICS.noise.of(result));
    lines.push(["time", `${formatTime(timeOf(result))} ± ${noise}`]);
  }
  if (result.throughput) {
    lines.push(["FLOP/s", formatFlops(METRICS.flops.of(result))],
               ["bytes/s", formatBytes(METRICS.bytes.of(result))],
               ["roofline", formatPercent(result.throughput.roofline_pct)]);
  }
  if (result.error) {
    lines.push(["err_ratio", formatRatio(result.error.err_ratio)],
               ["largest error", formatError(result.error.max_abs)]);
  }
  if (quantOf(result) !== null) lines.push(["cost of quantising", formatShare(quantOf(result))]);
  if (quantMark(result)) lines.push(["clipped", clippedText(result)]);
  return lines;
}

const titleOf = (result) => `${result.scenario}/${result.case}`;

/// What is selected. The plots show one file; the comparison all of them.
const selection = {
  file: DATA.files.length - 1,
  text: "",
  scenario: "",
  statuses: new Set(),  // empty = all
  backends: new Set(),  // empty = all

  listeners: [],
  change(changes) {
    Object.assign(this, changes);
    keepInAddress();
    for (const listener of this.listeners) listener();
  },
  /// Everything but the file, the set named by `except` left out.
  takes(result, except) {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    const id = result.id.toLowerCase();
    return (this.scenario === "" || result.scenario === this.scenario) &&
      (except === "statuses" || !this.statuses.size || this.statuses.has(result.status)) &&
      (except === "backends" || !this.backends.size || this.backends.has(result.backend)) &&
      words.every((word) => id.includes(word));
  },
  results(except) {
    return RESULTS.filter((r) => r.file === this.file && this.takes(r, except));
  },
};

/// The selection is kept in the address of the page, so that a link or a reload shows the same.
/// What the page does not have is left out.
function readAddress() {
  const asked = new URLSearchParams(location.search);
  const known = (name, values) => new Set(asked.getAll(name).filter((v) => values.includes(v)));
  const file = Number(asked.get("file") ?? selection.file);
  if (DATA.files[file]) selection.file = file;
  selection.text = asked.get("search") ?? "";
  if (Object.hasOwn(DATA.scenarios, asked.get("scenario") ?? "")) {
    selection.scenario = asked.get("scenario");
  }
  selection.statuses = known("status", STATUSES);
  selection.backends = known("backend", BACKENDS);
}

function keepInAddress() {
  const kept = new URLSearchParams();
  if (selection.text) kept.set("search", selection.text);
  if (selection.scenario) kept.set("scenario", selection.scenario);
  if (selection.file !== DATA.files.length - 1) kept.set("file", selection.file);
  for (const status of selection.statuses) kept.append("status", status);
  for (const backend of selection.backends) kept.append("backend", backend);
  const query = kept.toString();
  try {
    history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
  } catch {
    // A page that is shown inside of another program may have no address of its own.
  }
}

function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

/// The value of a scenario's key, whether it varies there or not.
const fieldOf = (result, key) => result.fields[key] ?? DATA.scenarios[result.scenario].common[key];
const axesOf = (result) => DATA.scenarios[result.scenario].axes;
