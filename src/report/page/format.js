// Numbers as people read them.

const NONE = "–";

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/// Four digits and the unit that suits.
function formatTime(us) {
  if (!isNumber(us)) return NONE;
  if (us < 1e3) return `${us.toPrecision(4)} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(4)} ms`;
  return `${(us / 1e6).toPrecision(4)} s`;
}

/// "812 T", "45.1 G": three digits and an SI prefix.
function formatSi(value) {
  if (!isNumber(value)) return NONE;
  return value === 0 ? "0" : d3.format(".3s")(value).replace(/([a-zA-Zµ])$/, " $1");
}

/// The same without digits that say nothing, for ticks.
function formatTick(value) {
  return d3.format("~s")(value).replace(/([a-zA-Zµ])$/, " $1");
}

const formatFlops = (value) => (isNumber(value) ? `${formatSi(value)}FLOP/s` : NONE);
const formatBytes = (value) => (isNumber(value) ? `${formatSi(value)}B/s` : NONE);

function formatError(value) {
  if (!isNumber(value)) return NONE;
  return value === 0 ? "0" : value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
}

function formatRatio(value) {
  return isNumber(value) ? value.toFixed(value < 10 ? 2 : 1) : NONE;
}

/// A relative error as a share: "4.6%", "0.046%".
function formatShare(share) {
  if (!isNumber(share)) return NONE;
  const percent = 100 * share;
  if (percent > 0 && percent < 0.001) return "<0.001%";
  return `${percent.toFixed(percent >= 1 || percent === 0 ? 1 : percent >= 0.1 ? 2 : 3)}%`;
}

function formatPercent(value, digits = 1) {
  return isNumber(value) ? `${value.toFixed(digits)}%` : NONE;
}

function formatChange(ratio) {
  if (!isNumber(ratio)) return NONE;
  const change = 100 * (ratio - 1);
  return `${change >= 0 ? "+" : "−"}${Math.abs(change).toFixed(Math.abs(change) < 10 ? 1 : 0)}%`;
}

/// 4096 as "4k": token counts are multiples of 1024.
function formatCount(value) {
  if (!isNumber(value)) return String(value);
  if (value >= 1024 && value % 1024 === 0) return `${value / 1024}k`;
  return value >= 1e6 ? formatSi(value) : String(value);
}

/// A value of a scenario's key.
function formatValue(value) {
  return value === null ? "none" : String(value);
}

/// Digits inside of texts count as numbers: q8 stands before q16.
const byText = new Intl.Collator("en", {numeric: true}).compare;

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
