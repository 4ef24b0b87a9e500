//! A report page: heading, key figures, linked sections, and at the end how it was made. Text arguments are escaped
//! here; arguments named `html` are inserted as they are.

use crate::invocation::{Invocation, Origin, date_and_time};
use std::fmt::Write;
use std::time::SystemTime;
use vitpcm_masks::Classes;
use vitpcm_masks::palette::display_colour;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The only script that may run in the page, whatever a name contains: SHA-256 of `SCRIPT`, checked by a test.
const SCRIPT_HASH: &str = "sha256-DvXLHJkVZzaePxNx0qCRX38bCLmm9VM6tSixM6YPF/c=";

/// The logo: a grid of patches, partly marked.
const MARK: &str = "<svg viewBox=\"0 0 20 20\" aria-hidden=\"true\"><g fill=\"currentColor\" opacity=\".35\">\
    <rect x=\"1\" y=\"1\" width=\"5\" height=\"5\" rx=\"1\"/><rect x=\"7.5\" y=\"1\" width=\"5\" height=\"5\" rx=\"1\"/>\
    <rect x=\"14\" y=\"1\" width=\"5\" height=\"5\" rx=\"1\"/><rect x=\"1\" y=\"7.5\" width=\"5\" height=\"5\" rx=\"1\"/>\
    <rect x=\"1\" y=\"14\" width=\"5\" height=\"5\" rx=\"1\"/></g><g fill=\"var(--accent)\">\
    <rect x=\"7.5\" y=\"7.5\" width=\"5\" height=\"5\" rx=\"1\"/><rect x=\"14\" y=\"7.5\" width=\"5\" height=\"5\" rx=\"1\"/>\
    <rect x=\"7.5\" y=\"14\" width=\"5\" height=\"5\" rx=\"1\"/><rect x=\"14\" y=\"14\" width=\"5\" height=\"5\" rx=\"1\"/></g></svg>";

/// A page under construction.
pub(crate) struct Page {
    command: &'static str,
    title: String,
    lead_html: String,
    figures_html: String,
    sections: Vec<Section>,
}

struct Section {
    id: &'static str,
    title: &'static str,
    html: String,
}

impl Page {
    /// A page of a command, with its heading and introduction.
    pub(crate) fn new(command: &'static str, title: &str, lead_html: String) -> Page {
        let title = title.to_owned();
        Page { command, title, lead_html, figures_html: String::new(), sections: Vec::new() }
    }

    /// A key figure with a remark in small print.
    pub(crate) fn figure(&mut self, name: &str, value: &str, remark: &str) {
        let [name, value, remark] = [name, value, remark].map(escaped);
        self.figures_html += &format!("<div><dt>{name}</dt><dd>{value} <small>{remark}</small></dd></div>\n");
    }

    /// Adds a section, unless it is empty.
    pub(crate) fn section(&mut self, id: &'static str, title: &'static str, html: String) {
        if !html.is_empty() {
            self.sections.push(Section { id, title, html });
        }
    }

    /// How the results were made: the command, its options and further details.
    pub(crate) fn origin_section(&mut self, invocation: &Invocation, more_html: &str) {
        let mut html = format!(
            "<p class=\"note\">Run in <code>{}</code>, begun {}.</p>\n<pre class=\"wrap\">{}</pre>\n",
            escaped(&invocation.folder),
            date_and_time(invocation.started),
            escaped(&invocation.command_line)
        );
        html +=
            "<details><summary>All options</summary><div class=\"panel\"><table class=\"settings\"><tbody>\n";
        for option in &invocation.options {
            let class = match option.origin {
                Origin::Given => "",
                Origin::Default => " class=\"default\"",
            };
            let (name, value) = (escaped(&option.name), escaped(&option.value));
            html += &format!("<tr{class}><th><code>{name}</code></th><td><code>{value}</code></td></tr>\n");
        }
        html += "</tbody></table></div></details>\n";
        self.section("command", "Command and configuration", html + more_html);
    }

    /// The whole page.
    pub(crate) fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut html = String::with_capacity(
            STYLE.len()
                + SCRIPT.len()
                + self.sections.iter().map(|section| section.html.len()).sum::<usize>(),
        );
        // Writing to a String cannot fail.
        let mut put = |text: std::fmt::Arguments<'_>| html.write_fmt(text).expect("a String takes all");
        put(format_args!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; \
             style-src 'unsafe-inline'; script-src '{SCRIPT_HASH}'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"generator\" content=\"vitpcm {}\">\n<title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body>\n",
            env!("CARGO_PKG_VERSION")
        ));
        put(format_args!(
            "<header>\n<p class=\"kicker\">{MARK} vitpcm {}</p>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n",
            self.command, self.lead_html
        ));
        if !self.figures_html.is_empty() {
            put(format_args!("<dl class=\"figures\">\n{}</dl>\n", self.figures_html));
        }
        put(format_args!("<nav aria-label=\"Sections\">\n"));
        for Section { id, title, .. } in &self.sections {
            put(format_args!("<a href=\"#{id}\">{title}</a>\n"));
        }
        put(format_args!("</nav>\n</header>\n<main>\n"));
        for Section { id, title, html } in &self.sections {
            put(format_args!("<section>\n<h2 id=\"{id}\">{title}</h2>\n{html}</section>\n"));
        }
        put(format_args!(
            "</main>\n<footer>Written {} by vitpcm {}. This file holds everything it shows and loads nothing.</footer>\n\
             <script>{SCRIPT}</script>\n</body></html>\n",
            date_and_time(SystemTime::now()),
            env!("CARGO_PKG_VERSION")
        ));
        html
    }
}

/// Text escaped for an element or a quoted attribute.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // HTML allows no control characters, and bidirectional marks would reverse the rest of a line.
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' if character != '\n' && character != '\t' => {
                escaped.push('\u{fffd}')
            }
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// A class's colour as a small square.
pub(crate) fn swatch(class: u8) -> String {
    let [red, green, blue] = display_colour(class);
    format!("<i class=\"swatch\" style=\"background:rgb({red} {green} {blue})\"></i>")
}

/// The class names with their colours, without background.
pub(crate) fn legend(classes: &Classes) -> String {
    let chips = classes.names().iter().enumerate().skip(1);
    let chips = chips
        .map(|(class, name)| format!("<span class=\"chip\">{}{}</span>", swatch(class as u8), escaped(name)));
    format!("<p class=\"legend\">{}</p>\n", chips.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use sha2::Digest;

    #[test]
    fn the_policy_lets_the_pages_own_script_run_and_no_other() {
        let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(SCRIPT));
        assert_eq!(SCRIPT_HASH, format!("sha256-{hash}"), "page.js changed: put this hash in");
    }

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escaped("<b a='1' b=\"2\">&"), "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;");
        assert_eq!(escaped("gnp.\u{202e}exe\u{0}"), "gnp.\u{fffd}exe\u{fffd}");
        let page = Page::new("segment", "</title><script>alert(1)</script>", String::new());
        assert!(!page.html().contains("<script>alert"));
    }
}
