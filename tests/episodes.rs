//! The published experiments, and what they must show here.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use kvtide::replay::episodes::{self, EpisodeStates};
use kvtide::replay::joint;

#[tokio::test]
async fn every_episode_keeps_what_was_published_and_all_together_more_than_page_granular_lru() {
    let rows = episodes::run(EpisodeStates::Inside, || {}).await.unwrap().episodes;
    assert_eq!(rows.len(), 48);
    for row in &rows {
        assert!(row.cached >= row.published_after, "{row:?}");
    }
    let mellum: Vec<_> = rows.iter().filter(|row| row.model == "mellum2").collect();
    for row in &mellum {
        assert!(row.cached >= row.page_granular, "{row:?}");
    }
    let total = |cached: &mut dyn Iterator<Item = u32>| cached.sum::<u32>();
    assert_eq!(total(&mut rows.iter().map(|row| row.published_before)), 57_856);
    assert_eq!(total(&mut rows.iter().map(|row| row.published_after)), 68_480);
    assert_eq!(total(&mut rows.iter().map(|row| row.page_granular)), 74_752);
    // A change of either figure is a change of behaviour: see the README's table.
    assert_eq!(total(&mut mellum.iter().map(|row| row.cached)), 64_128);
    assert_eq!(total(&mut rows.iter().map(|row| row.cached)), 92_800);
}

#[tokio::test]
async fn states_at_prompt_ends_too_cost_hits_and_still_beat_page_granular_lru_in_total() {
    let rows = episodes::run(EpisodeStates::Every, || {}).await.unwrap().episodes;
    assert_eq!(rows.iter().map(|row| row.cached).sum::<u32>(), 82_944);
}

#[tokio::test]
async fn joint_demands_evict_the_least_that_has_to_go_and_nothing_for_the_impossible() {
    for case in joint::run().await.unwrap() {
        match case.case {
            "two pools, demand 6" => {
                // 160 bytes are short: two full and three window pages, of the three oldest tokens.
                let evicted = (case.evicted_full, case.evicted_window);
                assert_eq!((case.met, evicted, case.matchable), (true, (2, 3), 93), "{case:?}");
            }
            "three pools, demand 4" => {
                assert!(case.met && case.matchable >= 95, "{case:?}");
                assert!(case.evicted_full <= 1 && case.evicted_states <= 1, "{case:?}");
            }
            _ => {
                assert!(!case.met, "{case:?}");
                assert_eq!((case.evicted_full, case.evicted_states, case.matchable), (0, 0, 96));
            }
        }
    }
}
