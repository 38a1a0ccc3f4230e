//! What cost a run time: events, and what steps waited for.

use tidemill_report::metrics::{Metrics, Waiting};
use tidemill_report::{Mark, Table};
use tidemill_telemetry::{Event, EventKind};

/// The newest events that are listed. The sum is of all.
const LISTED_EVENTS: usize = 50;

/// Where in the charts the newest events are.
pub fn event_marks(events: &[Event]) -> Vec<Mark> {
    let mark = |event: &Event| Mark { x: event.step.max(1) as f64, label: event.kind.name().to_owned() };
    events[events.len().saturating_sub(LISTED_EVENTS)..].iter().map(mark).collect()
}

/// The events, what steps waited for, and the sum of both. None if nothing was lost.
pub fn lost_time_table(events: &[Event], metrics: &Metrics) -> Option<Table> {
    let skipped = events.len().saturating_sub(LISTED_EVENTS);
    let mut rows: Vec<Vec<String>> = events[skipped..].iter().map(event_row).collect();
    if skipped > 0 {
        let seconds = event_seconds(&events[..skipped]);
        let steps = events[..skipped].iter().map(|event| event.steps_lost).sum::<u64>().to_string();
        rows.insert(0, row("earlier", "", steps, Some(seconds), &format!("{skipped} events")));
    }
    let Waiting { data, ranks, communication } = metrics.waiting;
    let waits = [
        (data, "all steps together waited for data"),
        (ranks, "all steps together waited for slower ranks"),
        (communication, "all steps together waited for gradients and weights"),
    ];
    // Less than a tenth of a second is nothing to look at.
    let waits = waits.into_iter().filter(|(seconds, _)| *seconds >= 0.1);
    rows.extend(waits.clone().map(|(seconds, what)| row("waiting", "", String::new(), Some(seconds), what)));
    let total = event_seconds(events) + waits.map(|(seconds, _)| seconds).sum::<f64>();
    if rows.is_empty() {
        return None;
    }
    let share = 100.0 * total / (metrics.seconds + event_seconds(events)).max(1e-9);
    rows.push(row("sum", "", String::new(), Some(total), &format!("{share:.1} % of the time of the run")));
    let head = ["what", "step", "steps again", "seconds lost", ""].map(str::to_owned).into();
    Some(Table { title: "What cost time".into(), head, rows })
}

fn event_seconds(events: &[Event]) -> f64 {
    events.iter().filter_map(|event| event.seconds_lost).sum()
}

fn event_row(event: &Event) -> Vec<String> {
    let steps = if event.steps_lost > 0 { event.steps_lost.to_string() } else { String::new() };
    let message = match event.kind {
        EventKind::SlowRank => format!("{}; what it costs is below", event.message),
        _ => event.message.clone(),
    };
    row(event.kind.name(), &event.step.to_string(), steps, event.seconds_lost, &message)
}

fn row(what: &str, step: &str, steps: String, seconds: Option<f64>, message: &str) -> Vec<String> {
    let seconds = seconds.map_or_else(String::new, |seconds| format!("{seconds:.1}"));
    vec![what.to_owned(), step.to_owned(), steps, seconds, message.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, step: u64, seconds_lost: Option<f64>) -> Event {
        Event { time: 0.0, kind, step, steps_lost: step / 10, seconds_lost, message: "why".into() }
    }

    #[test]
    fn lost_seconds_of_events_and_waits_are_added_up() {
        assert_eq!(lost_time_table(&[], &Metrics::default()), None);
        let waiting = Waiting { data: 3.0, ranks: 0.01, communication: 0.0 };
        let metrics = Metrics { seconds: 90.0, waiting, ..Metrics::default() };
        let events = [event(EventKind::Fault, 20, Some(10.0)), event(EventKind::SlowRank, 0, None)];
        let table = lost_time_table(&events, &metrics).unwrap();
        let lines: Vec<String> = table.rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(
            lines,
            [
                "fault|20|2|10.0|why",
                "slow rank|0|||why; what it costs is below",
                "waiting|||3.0|all steps together waited for data",
                "sum|||13.0|13.0 % of the time of the run",
            ]
        );
        let many: Vec<Event> = (0..60).map(|step| event(EventKind::Resume, step, Some(1.0))).collect();
        let table = lost_time_table(&many, &Metrics::default()).unwrap();
        assert_eq!(table.rows.len(), LISTED_EVENTS + 2);
        assert_eq!(table.rows[0][3], "10.0");
        assert_eq!(table.rows[51][3], "60.0");
    }
}
