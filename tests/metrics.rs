//! The metrics endpoint: what it serves is valid exposition text, and its numbers are the service's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};

use kvtide::error::AllocError;
use kvtide::message::Publishing;
use kvtide::telemetry::{Publisher, TelemetryError, serve_metrics};
use kvtide_core::chain::Grow;
use rig::{Rig, config, full, run, state, swa, tokens};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain"), "{head}");
    body.to_owned()
}

/// Exposition text, read strictly.
#[derive(Debug, Default)]
struct Exposition {
    help: BTreeMap<String, String>,
    kinds: BTreeMap<String, String>,
    /// By name and labels.
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Exposition {
    fn parse(text: &str) -> Self {
        let mut read = Exposition::default();
        let mut families = BTreeSet::new();
        let mut family = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let known = read.help.insert(name.to_owned(), help.to_owned());
                assert_eq!(known, None, "{name} has two helps");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
                let known = read.kinds.insert(name.to_owned(), kind.to_owned());
                assert_eq!(known, None, "{name} has two types");
                assert!(families.insert(name.to_owned()), "{name} is in two places");
                family = name.to_owned();
            } else {
                assert!(!line.starts_with('#'), "{line}");
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                assert_eq!(name, family, "samples follow their type");
                let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
                let labels = labels.split(',').filter(|label| !label.is_empty());
                let labels = labels.map(|label| {
                    let (key, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                    (key.to_owned(), value.strip_suffix('"').unwrap().to_owned())
                });
                let series = (name.to_owned(), labels.collect());
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert_eq!(read.samples.insert(series, value), None, "twice: {line}");
            }
        }
        read
    }

    #[track_caller]
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        *self
            .samples
            .get(&(name.to_owned(), wanted))
            .unwrap_or_else(|| panic!("no {name} {labels:?} in {:#?}", self.samples))
    }

    /// Names, help and units of everything served.
    fn check_names(&self) {
        assert!(self.samples.len() > 40, "{}", self.samples.len());
        // Counts of things that are there now have no unit.
        let counts =
            ["kvtide_sequences", "kvtide_queue_depth", "kvtide_leases", "kvtide_gates_closed"];
        for (name, _) in self.samples.keys() {
            assert!(name.starts_with("kvtide_"), "{name}");
            let kind = &self.kinds[name];
            let help = self.help.get(name).unwrap_or_else(|| panic!("{name} has no help"));
            assert!(!help.trim().is_empty(), "{name}");
            match kind.as_str() {
                "counter" => assert!(name.ends_with("_total"), "{name} is a counter"),
                "gauge" => assert!(
                    counts.contains(&name.as_str())
                        || name.ends_with("_bytes")
                        || name.ends_with("_tokens"),
                    "{name} has no unit"
                ),
                other => panic!("{name} is a {other}"),
            }
        }
    }

    /// What the numbers of one scrape must come to, whatever happened.
    fn check_sums(&self, pools: &[&str]) {
        let arena = self.value("kvtide_arena_bytes", &[]);
        let sink = self.value("kvtide_sink_bytes", &[]);
        let mut all = 0.0;
        for pool in pools {
            let states = ["live", "hole", "pending", "reserved"];
            let bytes =
                |state| self.value("kvtide_pool_bytes", &[("pool", pool), ("state", state)]);
            let used: f64 = states.into_iter().map(bytes).sum();
            let capacity = self.value("kvtide_pool_capacity_bytes", &[("pool", pool)]);
            let free = self.value("kvtide_pool_free_bytes", &[("pool", pool)]);
            assert!(bytes("live") + free <= capacity, "{pool}: {free}");
            assert!(capacity <= arena - sink);
            let tokens =
                |state| self.value("kvtide_pool_tokens", &[("pool", pool), ("state", state)]);
            assert_eq!(tokens("cached"), tokens("locked") + tokens("evictable"));
            all += used;
        }
        assert!(all <= arena - sink, "{all} of {arena}");
    }
}

/// A few operations of every sort.
async fn work(rig: &Rig) -> u64 {
    let mut prompts = 0;
    for (start, length) in [(0, 12), (0, 20), (100, 30), (0, 20), (200, 40), (300, 40)] {
        prompts += u64::from(length);
        let mut sequence = rig.open(tokens(start, length)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        sequence.checkpoint(Publishing::PagesAndState, None).await.unwrap();
        sequence.append(tokens(900, 5), None).await.unwrap();
        sequence.finish(Publishing::PagesAndState).await.unwrap();
    }
    prompts
}

#[test]
fn the_endpoint_serves_the_service_s_numbers() {
    run(async {
        let address = free_address();
        serve_metrics(address).unwrap();
        let again = serve_metrics(address);
        assert!(matches!(again, Err(TelemetryError::Metrics { .. })), "{again:?}");
        let pools = vec![full(Grow::Up, 64), state(Grow::Float, 96), swa(4, Grow::Down, 32)];
        let rig = Rig::start(config(3_200, 2, pools)).await;
        let publisher = Publisher::new(&rig.stats().await);
        publisher.publish(&rig.stats().await);
        let idle = Exposition::parse(&scrape(address).await);
        idle.check_names();
        idle.check_sums(&["full", "state", "swa"]);
        assert_eq!(idle.value("kvtide_hit_tokens_total", &[]), 0.0);
        assert_eq!(idle.value("kvtide_arena_bytes", &[]), 3_200.0);

        let prompts = work(&rig).await;
        let mut open = rig.open(tokens(0, 21)).await.unwrap();
        open.extend(None, None).await.unwrap();
        let step = rig.handle.begin_step(&[&open]).await.unwrap();
        let all: Vec<_> = rig.handle.chain().pool_ids().collect();
        let gate = rig.handle.close_moves("transfer", &all).await.unwrap();
        let refused = rig.reserve(&[("full", 60)], None).await.err();
        assert!(matches!(refused, Some(AllocError::Impossible { .. })), "{refused:?}");
        drop(open);
        publisher.publish(&rig.stats().await);
        let busy = Exposition::parse(&scrape(address).await);
        busy.check_names();
        busy.check_sums(&["full", "state", "swa"]);
        let (hits, misses) = (
            busy.value("kvtide_hit_tokens_total", &[]),
            busy.value("kvtide_miss_tokens_total", &[]),
        );
        assert_eq!(hits + misses, (prompts + 21) as f64);
        assert!(hits > 0.0);
        assert_eq!(busy.value("kvtide_sequences_opened_total", &[]), 7.0);
        assert_eq!(busy.value("kvtide_sequences", &[]), 0.0);
        assert_eq!(busy.value("kvtide_leases", &[]), 1.0);
        assert_eq!(busy.value("kvtide_gates_closed", &[]), 1.0);
        assert_eq!(busy.value("kvtide_allocations_total", &[("outcome", "impossible")]), 1.0);
        assert!(busy.value("kvtide_evicted_tokens_total", &[("pool", "full")]) > 0.0);
        let pending =
            |pool| busy.value("kvtide_pool_bytes", &[("pool", pool), ("state", "pending")]);
        assert!(pending("full") > 0.0, "freed under a lease");
        let stats = rig.stats().await;
        for (at, pool) in stats.pools.iter().enumerate() {
            let live = (u64::from(pool.counts.live.0) * pool.page_bytes.0) as f64;
            let served =
                busy.value("kvtide_pool_bytes", &[("pool", &pool.name), ("state", "live")]);
            assert_eq!(served, live, "{at}");
        }
        // Counters never go back.
        for (series, before) in &idle.samples {
            let counter = idle.kinds[&series.0] == "counter";
            assert!(!counter || busy.samples[series] >= *before, "{series:?}");
        }
        drop((step, gate));
        rig.rests().await;
    });
}
