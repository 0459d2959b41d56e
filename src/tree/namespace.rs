//! Which prefixes may be shared at all.

use std::sync::Arc;

/// Tenant salt and adapter that a prefix was computed under.
///
/// Equal tokens of different namespaces never match. An absent part is not an empty one, and the parts are compared
/// one by one, so that no salt can be made to look like another salt with an adapter.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Namespace {
    /// The tenant's salt.
    pub salt: Option<Arc<str>>,
    /// The adapter's id.
    pub adapter: Option<Arc<str>>,
}
