// Backends side by side: a row a case, a column a backend, the best one marked.

const MOST_CASES = 30;
const peerState = {cases: MOST_CASES};

const formatTimes = (ratio) => (isNumber(ratio) ? `${formatRatio(ratio)}×` : NONE);

function drawPeers(container) {
  const results = selection.results().filter((r) => r.peer);
  const cases = [...groupBy(results, titleOf).values()].filter((all) => all.some(timeOf));
  if (!cases.length) {
    container.append(absent("No selected case was timed on several backends."));
    return;
  }
  const timed = results.filter((r) => timeOf(r) !== null);
  const withTime = new Set(timed.map((r) => r.backend));
  const named = [...new Set(results.map((r) => r.backend))];
  const backends = named.filter((backend) => withTime.has(backend));
  const inTurns = cases.some((all) => all[0].peer.rounds > 0);
  container.append(element("p", {class: "hint"}, turnsText(cases)));
  container.append(element("div", {class: "scroll", tabindex: "0", role: "region",
                                   "aria-label": "backends side by side"},
    element("table", {class: "plain peers"},
      element("thead", {}, element("tr", {}, element("th", {scope: "col"}, "case"),
        backends.map((backend) => element("th", {scope: "col"}, backendName(backend))))),
      element("tbody", {}, cases.slice(0, peerState.cases).map((all) =>
        peerRow(all, backends, inTurns && all[0].peer.rounds === 0 ? " †" : ""))))),
    ...markHints(timed, ["time", "quant"]));
  const more = cases.length - peerState.cases;
  if (more > 0) {
    const showAll = () => { peerState.cases = Infinity; redrawView("peers"); };
    container.append(element("p", {class: "more"}, `${plural(more, "more case")} `,
      element("button", {type: "button", onclick: showAll}, "Show all of them")));
  }
  const never = named.filter((backend) => !withTime.has(backend));
  if (never.length) {
    container.append(element("details", {}, element("summary", {},
      `Without a time in any of these cases: ${never.join(", ")}`),
      element("ul", {class: "reasons"}, never.map((backend) => element("li", {}, backend, ": ",
        reasonText(results.find((r) => r.backend === backend)))))));
  }
}

/// How the times were taken.
function turnsText(cases) {
  const rounds = cases.map((all) => all[0].peer.rounds);
  const apart = rounds.filter((count) => count === 0).length;
  const turns = [...new Set(rounds.filter((count) => count > 0))].sort((a, b) => a - b);
  if (!turns.length) return "Each backend was timed in one go, one after another.";
  return `Timed in turns in one process, ${plural(turns.at(-1), "round")}; in brackets the least ` +
    "and the largest ratio of a round." + (apart ? ` ${plural(apart, "case")} marked with † ` +
    "had backends that were timed one after another." : "");
}

const backendName = (backend) => [element("i", {class: `dot ${colorClass(backend)}`,
  "aria-hidden": "true"}), breakable(backend, /(?<=[_.:/])/)];

const reasonText = (result) => [result.status, ...result.reasons].join(": ");

/// Without the scenario where there is one only.
const nameOf = (result) => (Object.keys(DATA.scenarios).length > 1 ? titleOf(result) : result.case);

function peerRow(all, backends, mark) {
  return element("tr", {},
    element("th", {scope: "row", class: "case"}, breakable(nameOf(all[0]) + mark)),
    backends.map((backend) => peerCell(backend, all.find((r) => r.backend === backend))));
}

function peerCell(backend, result) {
  if (!result) return element("td", {class: "none"}, NONE);
  const name = element("span", {class: "peer-name"}, backendName(backend));
  if (timeOf(result) === null) {
    return element("td", {}, name, element("span", {class: `status ${result.status}`},
      result.status), element("span", {class: "peer-reason"}, result.reasons[0] || ""));
  }
  const {ratio, least, largest} = result.peer;
  const isBest = ratio <= 1;
  const range = !isBest && isNumber(least) ?
    ` (${formatRatio(least)}–${formatRatio(largest)})` : "";
  return element("td", {class: isBest ? "best" : ""}, name,
    element("button", {type: "button", class: "ratio", onclick: () => showResult(result)},
      formatTimes(ratio), element("span", {class: "range"}, range)),
    element("span", {}, formatTime(timeOf(result)) + timeMark(result)),
    RATES.map(({of, format}) => element("span", {}, format(of(result)))),
    element("span", {class: "soft"}, result.error ?
      `err_ratio ${formatRatio(result.error.err_ratio)}` : result.status),
    quantOf(result) === null ? null :
      element("span", {class: "soft"}, `quant ${formatShare(quantOf(result))}${quantMark(result)}`));
}
