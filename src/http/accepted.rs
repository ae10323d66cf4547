//! What a client says it accepts: the headers of RFC 9110, 12.5, however many lines they have.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use std::cmp::Reverse;

/// A form that a reply can have.
pub(super) struct Offer<T> {
    pub(super) form: T,
    /// Its media type.
    pub(super) media: &'static str,
    /// A parameter by name, and the value that selects this form; with `None`, only its absence does.
    pub(super) parameter: Option<(&'static str, Option<&'static str>)>,
    /// Whether ranges such as `*/*` select it as well.
    pub(super) by_range: bool,
}

impl<T> Offer<T> {
    /// A form that has to be named.
    pub(super) const fn named(form: T, media: &'static str) -> Offer<T> {
        Offer { form, media, parameter: None, by_range: false }
    }

    /// A form that ranges select as well.
    pub(super) const fn ranged(form: T, media: &'static str) -> Offer<T> {
        Offer { form, media, parameter: None, by_range: true }
    }

    fn is_by_value(&self) -> bool {
        self.parameter.is_some_and(|(_, value)| value.is_some())
    }

    fn is_named(&self, media: &str) -> bool {
        let said = |name: &str| -> Option<&str> {
            media.split(';').skip(1).find_map(|parameter| value(parameter.trim(), name))
        };
        let as_wanted = |(name, wanted): (&str, Option<&str>)| match (said(name), wanted) {
            (Some(said), Some(wanted)) => said.eq_ignore_ascii_case(wanted),
            (said, wanted) => said == wanted,
        };
        is(media, self.media) && self.parameter.is_none_or(as_wanted)
    }
}

/// The value of a parameter of this name, which may stand in quotes (RFC 9110, 5.6.6).
fn value<'a>(parameter: &'a str, name: &str) -> Option<&'a str> {
    let (its_name, value) = parameter.split_once('=')?;
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    its_name.eq_ignore_ascii_case(name).then(|| quoted.unwrap_or(value))
}

/// The preferred one of the forms that a reply has, if any is accepted. A form's weight comes from the most specific member of `Accept`
/// that selects it. Among equal weights, the more specifically named comes first, then the one named earlier, then the one offered earlier.
/// A member names one form: the first whose media type and parameter it has.
pub(super) fn best<T: Copy>(headers: &HeaderMap, offers: &[Offer<T>]) -> Option<T> {
    if !headers.contains_key(header::ACCEPT) {
        return None;
    }
    let members: Vec<_> = weighted(headers, header::ACCEPT).collect();
    let names: Vec<_> =
        members.iter().map(|(media, _)| offers.iter().position(|offer| offer.is_named(media))).collect();
    let standing = |(at, offer): (usize, &Offer<T>)| {
        let meant = members.iter().zip(&names).enumerate().filter_map(|(place, ((media, weight), named))| {
            let specific = match named {
                Some(named) => (*named == at).then_some(2 + u8::from(offer.is_by_value())),
                None => range(media, offer.media).filter(|_| offer.by_range),
            };
            Some((specific?, *weight, place))
        });
        let (specific, weight, place) = meant.max_by(|(specific, weight, place), other| {
            specific.cmp(&other.0).then(weight.total_cmp(&other.1)).then(other.2.cmp(place))
        })?;
        (weight > 0.0).then_some((weight, (specific, Reverse(place), Reverse(at)), offer.form))
    };
    let accepted = offers.iter().enumerate().filter_map(standing);
    let best =
        accepted.max_by(|(weight, rank, _), other| weight.total_cmp(&other.0).then(rank.cmp(&other.1)));
    best.map(|(_, _, form)| form)
}

/// How specific a range is that covers this media type: 0 for `*/*`, 1 for all subtypes of its type.
fn range(media: &str, of: &str) -> Option<u8> {
    let kind = of.split('/').next().unwrap_or_default();
    let range = media.split(';').next().unwrap_or_default().trim();
    let of_its_kind = || range.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(kind));
    if range == "*/*" { Some(0) } else { of_its_kind().then_some(1) }
}

/// Whether a media type, whatever its parameters, has this name.
pub(super) fn is(media: &str, name: &str) -> bool {
    media.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case(name))
}

/// All lines of a header that is a list, as one (RFC 9110, 5.3).
pub(super) fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let lines: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    String::from_utf8_lossy(&lines.join(&b", "[..])).into_owned()
}

/// Members of a list that are looked at: browsers send some ten, and a head has room for a hundred thousand.
const MEMBERS_MAX: usize = 100;

/// The members of such a header with their parameters, and the weight of each: 0 means not wanted. Those beyond the first
/// [`MEMBERS_MAX`] are passed over.
pub(super) fn weighted(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (&str, f32)> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).take(MEMBERS_MAX).map(|member| {
        let mut parameters = member.split(';').skip(1);
        let weight = parameters.find_map(|part| part.trim().strip_prefix(['q', 'Q'])?.strip_prefix('='));
        // A weight that cannot be read counts as 0.
        (member.trim(), weight.map_or(1.0, |text| text.trim().parse().unwrap_or(0.0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn what_is_liked_best_is_given_whichever_line_says_so() {
        let offers = [
            Offer { parameter: Some(("x", Some("y"))), ..Offer::named('y', "a/b") },
            Offer { parameter: Some(("x", None)), ..Offer::ranged('b', "a/b") },
            Offer::ranged('d', "a/d"),
            Offer::named('f', "e/f"),
        ];
        let check = |lines: &[&'static str], expected: Option<char>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::ACCEPT, HeaderValue::from_static(line));
            }
            assert_eq!(best(&headers, &offers), expected, "{lines:?}");
        };
        check(&["a/d, a/b"], Some('d'));
        check(&["a/d;q=0.5, x/y", "E/F; Q=0.7"], Some('f'));
        check(&["a/b;q=0, a/d;q=0.000;x=y, e/f;q=?"], None);
        check(&["a/b; q=0.1"], Some('b'));
        check(&["a/b; X=\"Y\" ; q=0.1"], Some('y'));
        check(&["a/b; x=z"], None);
        check(&["*/*"], Some('b'));
        check(&["*/*, e/f"], Some('f'));
        check(&["a/b;q=0, */*"], Some('d'));
        check(&["a/*;q=0, */*"], None);
        check(&["e/*"], None);
    }
}
