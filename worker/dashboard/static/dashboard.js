// What the pages do beyond links and forms: take new numbers as they come, say when none come, copy a command.
// Without it every page still shows what there was when it was loaded.
"use strict";

(function () {
  const body = document.body;
  const byId = (id) => document.getElementById(id);

  // Changes `old` to what `next` is, in place: focus, scrolling and open details stay. Children are matched by data-key
  // where they have one, else by their place.
  function morph(old, next) {
    if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) {
      old.replaceWith(document.importNode(next, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
      return;
    }
    for (const { name } of Array.from(old.attributes)) {
      if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of Array.from(next.attributes)) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const keyed = new Map();
    for (const child of old.children) if (child.dataset && child.dataset.key) keyed.set(child.dataset.key, child);
    let place = old.firstChild;
    for (const wanted of Array.from(next.childNodes)) {
      const key = wanted.dataset && wanted.dataset.key;
      const held = key ? keyed.get(key) : null;
      if (held && held !== place) old.insertBefore(held, place);
      if (held) {
        place = held.nextSibling;
        morph(held, wanted);
      } else if (place && !(place.dataset && place.dataset.key) && !key) {
        const after = place.nextSibling;
        morph(place, wanted);
        place = after;
      } else {
        old.insertBefore(document.importNode(wanted, true), place);
      }
    }
    while (place) {
      const after = place.nextSibling;
      place.remove();
      place = after;
    }
  }

  function parsed(html) {
    return new DOMParser().parseFromString(html, "text/html");
  }

  function setText(id, text) {
    const element = byId(id);
    if (element && element.textContent !== text) element.textContent = text;
  }

  function lost(words) {
    setText("lost-words", words);
    byId("lost").hidden = !words;
    body.classList.toggle("is-live", !words);
    if (words) setText("mode", "Read");
  }

  let fetching = false;
  async function refresh() {
    if (fetching) return;
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (answer.ok && !answer.redirected) {
        const page = parsed(await answer.text());
        morph(byId("main"), page.getElementById("main"));
        if (!page.body.dataset.refresh) delete body.dataset.refresh;
      }
    } catch (error) {
      console.info("not refreshed this time", error);
    } finally {
      fetching = false;
    }
  }

  function took(event) {
    const told = JSON.parse(event.data);
    lost("");
    setText("mode", told.ok ? "Live, read" : "Last read");
    body.classList.toggle("is-live", told.ok);
    if (told.at) setText("at", told.at);
    setText("trouble-words", told.trouble);
    byId("trouble").hidden = told.ok;
    body.classList.toggle("is-stale", !told.ok);
    if (told.ok && body.dataset.down === "1") {
      location.reload();
      return;
    }
    const live = byId("live");
    if (told.html && live) {
      const next = live.cloneNode(false);
      next.append(...parsed(told.html).body.childNodes);
      morph(live, next);
    }
    const newer = told.answered - Number(body.dataset.answered);
    const line = byId("newer");
    if (line && told.ok && newer > 0) {
      const link = line.querySelector("a") || line.appendChild(document.createElement("a"));
      link.href = location.href;
      const words = newer === 1 ? "1 batch was answered since: show it" : newer + " batches were answered since: show them";
      if (link.textContent !== words) link.textContent = words;
    }
    if (told.ok && body.dataset.refresh && document.visibilityState === "visible") refresh();
  }

  let wait = 0;
  function listen() {
    const source = new EventSource("/events?live=" + encodeURIComponent(body.dataset.live));
    source.addEventListener("look", took);
    source.addEventListener("full", () => {
      source.close();
      lost("Too many pages are open on this dashboard: this one is not live. It tries again every half minute.");
      wait = setTimeout(listen, 30000);
    });
    source.addEventListener("error", async () => {
      if (!body.classList.contains("is-leaving")) lost("The dashboard does not answer. It is tried again every few seconds.");
      if (source.readyState !== EventSource.CLOSED) return;
      source.close();
      try {
        const answer = await fetch("/", { credentials: "same-origin", headers: { Accept: "*/*" } });
        if (answer.status === 401) {
          lost("You are signed out. Load this page again to sign in.");
          return;
        }
      } catch (error) {
        console.info("still away", error);
      }
      wait = setTimeout(listen, 3000);
    });
    addEventListener("pagehide", () => {
      body.classList.add("is-leaving");
      clearTimeout(wait);
      source.close();
    }, { once: true });
  }

  function copying() {
    if (!navigator.clipboard) return;
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
    }
  }

  // After a link on another site the browser keeps the cookie back on the first request, and sends it on this one.
  async function signedInAlready() {
    const answer = await fetch("/", { credentials: "same-origin", headers: { Accept: "*/*" } });
    if (answer.ok) location.replace(body.dataset.login);
  }

  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  if (body.dataset.login !== undefined) {
    signedInAlready();
  } else {
    copying();
    listen();
  }
})();
