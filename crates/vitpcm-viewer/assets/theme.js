// Light or dark: what the system says, unless the switch was used. Loaded before the page is drawn, so that it does not
// flash in the wrong colours.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("vitpcm-theme"); } catch { return null; }
  };
  const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const saved = stored();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;

  const label = () => {
    const button = document.getElementById("theme");
    const other = current() === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme (T)`;
  };
  window.toggleTheme = () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("vitpcm-theme", root.dataset.theme); } catch { /* private windows may refuse */ }
    label();
  };
  addEventListener("DOMContentLoaded", () => {
    label();
    document.getElementById("theme").addEventListener("click", window.toggleTheme);
    system.addEventListener("change", label);
  });
})();
