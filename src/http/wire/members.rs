//! Members of JSON objects, and elements of lists, of which a request has few. Anything else that a client writes costs no memory.

use super::{check_length, clipped};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{
    borrow::{Borrow, Cow},
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
};

/// The most members or elements of anything that is read as a whole.
pub(super) const FEW_MAX: usize = 4096;
/// The same for what stands within each element of such a list, such as the parameters of an output. If both could have 4096, their memory
/// would be large, and charged to nobody.
pub(super) const INNER_MAX: usize = 64;

/// A text that is borrowed from the JSON, unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Str<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The member of an object with this name, if `json` begins with an object that has it; the last one, if it is repeated.
pub(super) fn member<'a>(json: &'a str, name: &str) -> Option<&'a RawValue> {
    Named(name).deserialize(&mut serde_json::Deserializer::from_str(json)).ok()?
}

struct Named<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Named<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Str(key)) = map.next_key()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// At most `MAX` members of an object: those for whose value there is a `W`.
struct Few<const MAX: usize, K, V, W>(fn(V) -> Option<W>, PhantomData<K>);

impl<'de, const MAX: usize, K, V, W> Visitor<'de> for Few<MAX, K, V, W>
where
    K: From<Cow<'de, str>> + Borrow<str> + Ord,
    V: Deserialize<'de>,
{
    type Value = BTreeMap<K, W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut few, mut others) = (BTreeMap::new(), 0);
        while let Some(Str(key)) = map.next_key()? {
            check_length("a member", &key).map_err(A::Error::custom)?;
            if few.len() + others == MAX && !few.contains_key(&*key) {
                let next = clipped(&key);
                return Err(A::Error::custom(format!(
                    "more than {MAX} members in an object (then {next:?})"
                )));
            }
            match self.0(map.next_value()?) {
                Some(value) => _ = few.insert(K::from(key), value),
                None => {
                    others += 1;
                    few.remove(&*key);
                }
            }
        }
        Ok(few)
    }
}

/// All members of an object, at most `MAX`.
pub(super) fn members<'de, const MAX: usize, D, V>(from: D) -> Result<BTreeMap<Cow<'de, str>, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    from.deserialize_map(Few::<MAX, _, V, V>(Some, PhantomData))
}

/// The same for parameters, which may be absent. A member that is null counts as absent.
pub(super) fn members_or_absent<'de, const MAX: usize, D, V>(from: D) -> Result<BTreeMap<String, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    from.deserialize_option(Few::<MAX, _, Option<V>, V>(|value| value, PhantomData))
}

/// A list of few elements.
pub(super) struct FewOf<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FewOf<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FewOf<T>, D::Error> {
        struct Few<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
            type Value = FewOf<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FewOf<T>, A::Error> {
                let mut few = Vec::new();
                while let Some(element) = list.next_element()? {
                    if few.len() == FEW_MAX {
                        return Err(A::Error::custom(format!("more than {FEW_MAX} elements in a list")));
                    }
                    few.push(element);
                }
                Ok(FewOf(few))
            }
        }
        from.deserialize_seq(Few(PhantomData))
    }
}

/// A list of few elements.
pub(super) fn elements<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    FewOf::deserialize(from).map(|FewOf(few)| few)
}

/// The same for a list that may be absent.
pub(super) fn elements_or_absent<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<FewOf<T>>::deserialize(from)?.map(|FewOf(few)| few).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    #[test]
    fn one_member_is_found_among_any_and_of_several_the_last() {
        let text = r#"{"a":[{"b":1}],"b":2,"\u0062":3} and more"#;
        assert_eq!(member(text, "b").unwrap().get(), "3");
        assert_eq!(member(text, "a").unwrap().get(), r#"[{"b":1}]"#);
        assert!(
            member(text, "c").is_none() && member("[1]", "a").is_none() && member("{\"a\":", "a").is_none()
        );
    }

    #[test]
    fn more_members_or_elements_than_anybody_means_are_refused() {
        let list = |n: usize| format!("[{}]", vec!["1"; n].join(","));
        assert_eq!(serde_json::from_str::<FewOf<u8>>(&list(FEW_MAX)).unwrap().0.len(), FEW_MAX);
        let error = serde_json::from_str::<FewOf<u8>>(&list(FEW_MAX + 1)).err().unwrap().to_string();
        assert!(error.starts_with("more than 4096 elements in a list"), "{error}");
        let object = |n: usize| {
            let members: Vec<String> = (0..n).map(|n| format!("\"{n}\":1")).collect();
            format!("{{{}}}", members.join(","))
        };
        let read = |n: usize| {
            members_or_absent::<FEW_MAX, _, u8>(&mut serde_json::Deserializer::from_str(&object(n)))
        };
        assert_eq!(read(FEW_MAX).unwrap().len(), FEW_MAX);
        let error = read(FEW_MAX + 1).unwrap_err().to_string();
        assert!(error.starts_with("more than 4096 members in an object (then \"4096\")"), "{error}");
        let inner = |n: usize| {
            members_or_absent::<INNER_MAX, _, u8>(&mut serde_json::Deserializer::from_str(&object(n)))
        };
        assert_eq!(inner(INNER_MAX).unwrap().len(), INNER_MAX);
        let error = inner(INNER_MAX + 1).unwrap_err().to_string();
        assert!(error.starts_with("more than 64 members in an object (then \"64\")"), "{error}");
        let null = members_or_absent::<FEW_MAX, _, u8>(&mut serde_json::Deserializer::from_str("null"));
        assert_eq!(null.unwrap().len(), 0);
    }
}
