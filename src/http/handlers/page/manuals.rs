//! The manuals of errors, options and metrics as pages below `/docs`. Each is made from the same text as its file in `docs/`, which comes
//! from the code: there is one source. They need no scripts.

use crate::{config::options_md, http::reject::manual::errors_md, telemetry::metrics::metrics_md};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use std::fmt::Write;

/// The HTML around each manual.
pub(super) const TEMPLATE: &str = include_str!("assets/manual.html");

/// The names and documents of all manuals.
pub(super) fn manuals() -> [(&'static str, String); 3] {
    [("errors", errors_md()), ("options", options_md()), ("metrics", metrics_md())]
        .map(|(name, text)| (name, document(name, &text)))
}

/// Makes a page from a text.
fn document(name: &str, text: &str) -> String {
    let mut events: Vec<Event<'_>> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    let headings = identify(&mut events);
    let mut contents = String::new();
    for Heading { text, id, .. } in headings.iter().filter(|heading| heading.level == HeadingLevel::H2) {
        // Writing to a string cannot fail.
        let _ = writeln!(contents, "- [{text}](#{id})");
    }
    let title = headings.first().map_or(name, |heading| &heading.text);
    let mut body = String::new();
    html::push_html(&mut body, fitted(events).into_iter());
    let mut list = String::new();
    html::push_html(&mut list, Parser::new(&contents));
    TEMPLATE
        .replace("{{title}}", title)
        .replace("{{contents}}", &list)
        .replace(&format!("href=\"{name}\""), &format!("href=\"{name}\" aria-current=\"page\""))
        .replace("{{body}}", &body)
}

/// A heading, and where it can be linked to.
struct Heading {
    level: HeadingLevel,
    text: String,
    id: String,
}

/// Gives each heading the id by which other pages know it.
fn identify(events: &mut [Event<'_>]) -> Vec<Heading> {
    let mut headings: Vec<Heading> = Vec::new();
    for at in 0..events.len() {
        let Event::Start(Tag::Heading { level, .. }) = events[at] else { continue };
        let words =
            events[at + 1..].iter().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
        let text: String = words
            .filter_map(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
                _ => None,
            })
            .collect();
        let known = |id: &str| headings.iter().any(|heading| heading.id == id);
        let mut id = anchor(&text);
        if known(&id) {
            // Numbered as on GitHub.
            id = (1..).map(|count| format!("{id}-{count}")).find(|id| !known(id)).unwrap_or(id);
        }
        if let Event::Start(Tag::Heading { id: slot, .. }) = &mut events[at] {
            *slot = Some(id.clone().into());
        }
        headings.push(Heading { level, text, id });
    }
    headings
}

/// What GitHub makes of a heading's text, so that one link leads to both.
fn anchor(text: &str) -> String {
    let kept = text.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// Points links to what is served, lets tables scroll, and keeps text that looks like markup from being taken for it.
fn fitted(events: Vec<Event<'_>>) -> Vec<Event<'_>> {
    let mut out = Vec::with_capacity(events.len());
    let mut plain = false;
    let mut heading = CowStr::Borrowed("");
    for event in events {
        if let Event::Start(Tag::Heading { id: Some(id), .. }) = &event {
            heading = id.clone();
        }
        match event {
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => match served(&dest_url) {
                Some(dest_url) => {
                    let dest_url = dest_url.into();
                    out.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
                }
                None => plain = true,
            },
            Event::End(TagEnd::Link) if plain => plain = false,
            Event::Start(Tag::Table(columns)) => {
                let around = format!(
                    "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{heading}\">\n"
                );
                out.push(Event::Html(around.into()));
                out.push(Event::Start(Tag::Table(columns)));
            }
            Event::End(TagEnd::Table) => {
                out.push(Event::End(TagEnd::Table));
                out.push(Event::Html("</div>\n".into()));
            }
            Event::Html(text) if text.starts_with("<!--") => (),
            Event::Html(text) | Event::InlineHtml(text) => out.push(Event::Text(text)),
            other => out.push(other),
        }
    }
    out
}

/// Where a link in a text of `docs/` leads on a server, if its target is served.
fn served(to: &str) -> Option<String> {
    if to.starts_with('#') {
        return Some(to.to_owned());
    }
    let (file, place) = to.split_once('#').map_or((to, None), |(file, place)| (file, Some(place)));
    let name = file.strip_suffix(".md").filter(|name| ["errors", "options", "metrics"].contains(name))?;
    Some(place.map_or(name.to_owned(), |place| format!("{name}#{place}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{config::OPTIONS, http::reject::KINDS};

    fn of(name: &str) -> String {
        manuals().into_iter().find(|(known, _)| *known == name).unwrap().1
    }

    #[test]
    fn the_type_of_every_error_leads_to_what_is_said_about_it() {
        let page = of("errors");
        for kind in KINDS {
            let slug = kind.slug;
            assert!(
                page.contains(&format!("<h2 id=\"{slug}\">{slug}</h2>\n<p><strong>{}</strong>", kind.status)),
                "{slug}"
            );
        }
        assert!(page.contains("\"type\": \"/docs/errors#queue-full\""), "a whole one is shown");
        assert!(page.contains("<title>Errors – Ocelli</title>"));
        assert!(page.contains("href=\"errors\" aria-current=\"page\"") && !page.contains("{{"), "{page}");
    }

    #[test]
    fn every_option_can_be_linked_to() {
        let page = of("options");
        for option in OPTIONS {
            assert!(
                page.contains(&format!("<h3 id=\"{0}\"><code>{0}</code></h3>", option.name)),
                "{}",
                option.name
            );
        }
    }

    #[test]
    fn tables_are_tables_and_links_lead_to_what_is_served() {
        let page = document(
            "x",
            "# X\n<!-- made -->\n\n| a | b |\n|---|---|\n| `c<d>` | <e> |\n\n[o](options.md#page) [p](page.md) [k](#k)\n\n## K\n\n## K\n",
        );
        for part in [
            "<td><code>c&lt;d&gt;</code></td><td>&lt;e&gt;</td>",
            "<a href=\"options#page\">o</a> p <a href=\"#k\">k</a>",
            "<h2 id=\"k\">K</h2>\n<h2 id=\"k-1\">K</h2>",
            "<li><a href=\"#k-1\">K</a></li>",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains("made"), "comments are for those who change the text");
    }
}
