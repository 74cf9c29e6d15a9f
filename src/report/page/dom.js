// Elements of the page. Names and texts of result files become text nodes and attribute values,
// never markup.

/// element("button", {class: "chip", onclick: f}, "text", child...)
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/// A name of which lines may break after its separators.
function breakable(text, places = /(?<=[,/])/) {
  return text.split(places).flatMap((part) => [part, element("wbr")]);
}

/// A table of a header and rows of texts or elements.
function simpleTable(header, rows, attributes = {}) {
  const title = (text) => element("th", {scope: "col"}, text);
  // The label is what a phone shows in place of the header.
  const cell = (content, i) => element("td", {"data-label": header[i]}, content);
  return element("div", {class: "scroll", tabindex: "0", role: "region",
                         "aria-label": attributes.label || "table"},
    element("table", {class: attributes.class || "plain"},
      element("thead", {}, element("tr", {}, header.map(title))),
      element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell))))));
}

/// A labelled <select>; options are [value, text].
function chooser(label, options, value, onchange) {
  const select = element("select", {onchange: () => onchange(select.value)},
    options.map(([key, text]) => element("option", {value: key, selected: key === value}, text)));
  return element("label", {class: "chooser"}, element("span", {}, label), select);
}

function checkbox(label, checked, onchange) {
  const box = element("input", {type: "checkbox", checked,
                                onchange: () => onchange(box.checked)});
  return element("label", {class: "chooser"}, box, element("span", {}, label));
}

/// What a view says instead of a plot that its data cannot give.
function absent(text) {
  return element("p", {class: "absent"}, text);
}

function announce(text) {
  document.getElementById("live").textContent = text;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Why the old way too: a page that was opened as a file may not use the clipboard.
    const area = element("textarea", {class: "offscreen"});
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/// A command line with a button that copies it.
function commandLine(text) {
  const button = element("button", {class: "copy", type: "button"}, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copyText(text);
    button.textContent = copied ? "Copied" : "Select and copy";
    announce(button.textContent);
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return element("div", {class: "command"}, element("code", {}, text), button);
}

/// The one tooltip; lines are [label, value].
const tooltip = {
  show(clientX, clientY, title, lines) {
    const tip = document.getElementById("tip");
    tip.replaceChildren(element("strong", {}, title), element("dl", {},
      lines.map(([label, value]) => [element("dt", {}, label), element("dd", {}, value)])));
    tip.hidden = false;
    const margin = 12;
    const box = tip.getBoundingClientRect();
    const right = clientX + margin + box.width > window.innerWidth;
    const below = clientY - margin - box.height < 0;
    const left = right ? clientX - margin - box.width : clientX + margin;
    tip.style.left = `${Math.max(4, Math.min(left, window.innerWidth - box.width - 4))}px`;
    tip.style.top = `${below ? clientY + margin : clientY - margin - box.height}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};
