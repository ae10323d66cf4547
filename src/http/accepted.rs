//! What a caller says it takes: the headers of RFC 9110, 12.5, however many lines they have.

use axum::http::{HeaderMap, HeaderName, header};

/// The media types of `Accept` with their parameters, the best liked first; those of one weight in their order. What is not wanted
/// is left out.
pub(super) fn media(headers: &HeaderMap) -> Vec<&str> {
    liked(headers).into_iter().map(|(media, _)| media).collect()
}

/// The same with their weights.
pub(super) fn liked(headers: &HeaderMap) -> Vec<(&str, f32)> {
    let mut media: Vec<_> = weighted(headers, header::ACCEPT).filter(|(_, weight)| *weight > 0.0).collect();
    media.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    media
}

/// Whether a media type, whatever its parameters, has this name.
pub(super) fn is(media: &str, name: &str) -> bool {
    media.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case(name))
}

/// The members of such a header with their parameters, and the weight of each: 0 says what is not wanted.
pub(super) fn weighted(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (&str, f32)> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|member| {
        let mut parameters = member.split(';').skip(1);
        let weight = parameters.find_map(|part| part.trim().strip_prefix(['q', 'Q'])?.strip_prefix('='));
        // A weight that cannot be read is no wish.
        (member.trim(), weight.map_or(1.0, |text| text.trim().parse().unwrap_or(0.0)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn what_is_liked_best_comes_first_whichever_line_says_so() {
        let check = |lines: &[&'static str], expected: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::ACCEPT, HeaderValue::from_static(line));
            }
            assert_eq!(media(&headers), expected);
        };
        check(&[], &[]);
        check(&["a/b, c/d"], &["a/b", "c/d"]);
        check(&["a/b;q=0.5, c/d", "e/f; Q=0.7", "g/h"], &["c/d", "g/h", "e/f; Q=0.7", "a/b;q=0.5"]);
        check(&["a/b;q=0, c/d;q=0.000;x=y, e/f;q=?"], &[]);
        check(&["a/b; profile=p ; q=0.1"], &["a/b; profile=p ; q=0.1"]);
    }
}
