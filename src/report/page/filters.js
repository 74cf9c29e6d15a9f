// The bar that selects results for every view.

function filterBar(container) {
  const search = element("input", {type: "search", id: "search", placeholder: "words of an id…",
    "aria-label": "Only results whose id holds these words", autocomplete: "off",
    value: selection.text,
    oninput: () => later(() => selection.change({text: search.value}))});
  let waiting = 0;
  // Why later: every letter draws every view.
  const later = (action) => { clearTimeout(waiting); waiting = setTimeout(action, 120); };

  const chips = (label, name, values, decorate) => {
    const group = element("div", {class: "chips", role: "group", "aria-label": label});
    const buttons = new Map(values.map((value) => {
      const count = element("span", {class: "count"});
      const button = element("button", {type: "button", class: "chip", "aria-pressed": "false",
        "data-value": value,
        onclick: () => {
          const chosen = new Set(selection[name]);
          if (!chosen.delete(value)) chosen.add(value);
          selection.change({[name]: chosen});
        }}, decorate(value), value, " ", count);
      group.append(button);
      return [value, {button, count}];
    }));
    const update = () => {
      const counts = groupBy(selection.results(name), (r) =>
        (name === "statuses" ? r.status : r.backend));
      for (const [value, {button, count}] of buttons) {
        button.setAttribute("aria-pressed", String(selection[name].has(value)));
        count.textContent = (counts.get(value) || []).length;
      }
    };
    return {group, update};
  };

  const statuses = chips("Status", "statuses",
    STATUSES.filter((status) => RESULTS.some((r) => r.status === status)),
    (status) => element("i", {class: `dot ${status}`, "aria-hidden": "true"}));
  const backends = chips("Backend", "backends", BACKENDS,
    (backend) => element("i", {class: `dot ${colorClass(backend)}`, "aria-hidden": "true"}));
  const count = element("output", {id: "count", for: "search"});
  const reset = element("button", {type: "button", onclick: () => {
    search.value = "";
    selection.change({text: "", scenario: "", statuses: new Set(), backends: new Set()});
    render();
  }}, "Show all");

  const choosers = element("span", {class: "choosers"});
  const scenarios = Object.keys(DATA.scenarios).sort(byText);
  const render = () => choosers.replaceChildren(...[
    scenarios.length > 1 ? chooser("Scenario", [["", "all"], ...scenarios.map((s) => [s, s])],
      selection.scenario, (scenario) => selection.change({scenario})) : null,
    DATA.files.length > 1 ? chooser("File", DATA.files.map((file, i) => [String(i), file.path]),
      String(selection.file), (file) => selection.change({file: Number(file)})) : null,
  ].filter(Boolean));
  render();

  container.append(element("div", {class: "line"}, search, choosers, count, reset), statuses.group,
    backends.group);
  const update = () => {
    statuses.update();
    backends.update();
    const all = RESULTS.filter((r) => r.file === selection.file).length;
    const shown = selection.results().length;
    const results = plural(all, "result");
    count.textContent = shown === all ? results : `${shown} of ${results}`;
  };
  selection.listeners.push(update);
  update();
}
