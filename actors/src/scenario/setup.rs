//! The service that a scenario's header describes.

use super::run::RunError;
use super::{Arena, Header, Scenario};
use crate::config::{Config, Engine};
use crate::device::EngineKind;
use crate::error::StartError;

pub(super) fn configure(scenario: &Scenario) -> Result<Config, RunError> {
    let header: &Header = &scenario.header;
    let mut config = match &header.arena {
        Arena::Inline(arena) => {
            let chain = &arena.chain;
            let pools = chain.pool_ids().map(|pool| chain.pool(pool).clone()).collect();
            Config::from_pools(
                &header.name,
                chain.total(),
                chain.page_tokens(),
                Some(chain.sink()),
                pools,
            )
            .map_err(|error| scenario.refuse(header.place, error))?
        }
        Arena::Config { path, place } => {
            Config::load(path).map_err(|error| scenario.refuse(*place, error))?
        }
    };
    let engine = match header.engine {
        EngineKind::Host => Engine::Host,
        EngineKind::Accounting => Engine::Accounting,
        EngineKind::Cuda => {
            let what = StartError::DeviceUnavailable(
                "this build has no `cuda` engine; `host` and `accounting` are there".into(),
            );
            return Err(scenario.refuse(header.place, what).into());
        }
    };
    config = config.with_engine(engine);
    for key in &header.cache {
        config
            .apply_flat_key(&key.key, &key.value)
            .map_err(|error| scenario.refuse(key.place, error))?;
    }
    Ok(config)
}
