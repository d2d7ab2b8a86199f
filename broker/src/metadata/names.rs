//! Topic names: Kafka's rules.

/// Longest topic name: with a partition suffix it still fits a file name.
pub(super) const NAME_BYTES_MAX: usize = 249;

/// Why a topic name is refused (`INVALID_TOPIC_EXCEPTION`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No characters.
    #[error("a topic name may not be empty")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("a topic name may have at most {NAME_BYTES_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// `.` or `..`.
    #[error("a topic may not be named '.' or '..'")]
    Dots,
    /// A character outside `a-z A-Z 0-9 . _ -`.
    #[error("a topic name may hold only a-z, A-Z, 0-9, '.', '_' and '-', not {0:?}")]
    Character(char),
}

/// Checks `name` against Kafka's rules.
pub fn check_topic_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(name.chars().count()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.chars()
        .find(|c| !allowed(*c))
        .map_or(Ok(()), |c| Err(NameError::Character(c)))
}

/// Names that differ only in `.` and `_` collide in Kafka's metric names; two such topics may not exist together.
#[must_use]
pub(super) fn collision_key(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves Kafka's rules at their borders.
    #[test]
    fn names_follow_kafka() {
        for good in [
            "a",
            "...",
            "__consumer_offsets",
            "A.b_c-9",
            &"x".repeat(249),
        ] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_topic_name(""), Err(NameError::Empty));
        assert_eq!(check_topic_name("."), Err(NameError::Dots));
        assert_eq!(check_topic_name(".."), Err(NameError::Dots));
        assert_eq!(
            check_topic_name(&"x".repeat(250)),
            Err(NameError::TooLong(250))
        );
        assert_eq!(check_topic_name("a b"), Err(NameError::Character(' ')));
        assert_eq!(check_topic_name("ä"), Err(NameError::Character('ä')));
        assert_eq!(check_topic_name("a/b"), Err(NameError::Character('/')));
        assert_eq!(check_topic_name("a\0"), Err(NameError::Character('\0')));
    }

    /// Proves that dots and underscores are one for collisions.
    #[test]
    fn dot_and_underscore_collide() {
        assert_eq!(collision_key("a.b_c"), collision_key("a_b.c"));
        assert_ne!(collision_key("a.b"), collision_key("a-b"));
    }
}
