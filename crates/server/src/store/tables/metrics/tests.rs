use super::*;
use crate::store::files::Files;
use crate::store::schema;

fn database() -> (tempfile::TempDir, Connection) {
    let root = tempfile::tempdir().unwrap();
    let files = Files::open(root.path()).unwrap();
    let connection = schema::open(&files).unwrap();
    (root, connection)
}

fn set_all(on: &mut Connection, run: &str, steps: impl Iterator<Item = (i64, f64)>) {
    let transaction = on.transaction().unwrap();
    for (step, value) in steps {
        let at = (step, step * 10);
        set(&transaction, run, Source::Server, at, &[("loss", value)]).unwrap();
    }
    transaction.commit().unwrap();
}

fn only(on: &Connection, run: &str) -> Series {
    let mut all = series(on, run).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn a_repeated_step_replaces_its_value() {
    let (_root, mut on) = database();
    set_all(&mut on, "r", [(1, 1.0), (2, 2.0), (1, 5.0)].into_iter());
    let series = only(&on, "r");
    assert_eq!((series.count, series.last_step), (2, 2));
    assert_eq!(series.last_value.to_bits(), 2.0_f64.to_bits());
    let points = curve(&on, series.id, (0, i64::MAX), 10).unwrap();
    assert_eq!(points, [(1, 5.0, 5.0, 5.0, 10), (2, 2.0, 2.0, 2.0, 20)]);
}

#[test]
fn a_long_series_keeps_its_shape_in_a_bounded_number_of_points() {
    let (_root, mut on) = database();
    let steps = 100_000;
    // One step alone is high: it must not get lost.
    let value = |step: i64| if step == 777 { 50.0 } else { step as f64 / 1e5 };
    set_all(&mut on, "r", (1..=steps).map(|step| (step, value(step))));
    let series = only(&on, "r");
    assert_eq!((series.count, series.last_step), (steps as u64, steps));
    let rows: i64 = on
        .query_row("SELECT count(*) FROM points", [], |row| row.get(0))
        .unwrap();
    assert!((ROWS / 2..=ROWS).contains(&rows), "{rows}");
    let counted: i64 = on
        .query_row("SELECT sum(count) FROM points", [], |row| row.get(0))
        .unwrap();
    assert_eq!(counted, steps, "every step is in some point");
    let curve = curve(&on, series.id, (0, i64::MAX), 500).unwrap();
    assert!((400..=501).contains(&curve.len()), "{}", curve.len());
    assert_eq!(curve.last().unwrap().0, steps);
    let highest = curve.iter().map(|point| point.3).fold(0.0, f64::max);
    assert_eq!(highest.to_bits(), 50.0_f64.to_bits());
    let mean_of_last = curve.last().unwrap().1;
    assert!((0.99..=1.0).contains(&mean_of_last), "{mean_of_last}");
    assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn a_curve_is_cut_to_its_range() {
    let (_root, mut on) = database();
    set_all(&mut on, "r", (1..=100).map(|step| (step, 1.0)));
    let id = only(&on, "r").id;
    let steps = |range, most| {
        let points = curve(&on, id, range, most).unwrap();
        points.iter().map(|point| point.0).collect::<Vec<_>>()
    };
    assert_eq!(steps((10, 13), 500), [10, 11, 12, 13]);
    assert_eq!(steps((1, 100), 2), [50, 100]);
    assert_eq!(steps((i64::MIN, i64::MAX), 1), [100]);
    assert!(steps((200, 300), 10).is_empty() && steps((13, 10), 10).is_empty());
}

#[test]
fn a_run_has_only_so_many_series_and_none_of_what_is_no_number() {
    let (_root, mut on) = database();
    let transaction = on.transaction().unwrap();
    let names: Vec<_> = (0..SERIES + 10).map(|n| format!("m{n}")).collect();
    let values: Vec<_> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    set(&transaction, "r", Source::Client, (1, 0), &values).unwrap();
    let not_finite = [("nan", f64::NAN), ("inf", f64::INFINITY)];
    set(&transaction, "s", Source::Client, (1, 0), &not_finite).unwrap();
    transaction.commit().unwrap();
    assert_eq!(series(&on, "r").unwrap().len(), SERIES);
    assert!(series(&on, "s").unwrap().is_empty());
}

#[test]
fn what_came_behind_a_step_is_found_in_order() {
    let (_root, mut on) = database();
    set_all(&mut on, "r", (1..=5).map(|step| (step, step as f64)));
    let found = between(&on, "r", (3, i64::MAX), true, 10).unwrap();
    let steps: Vec<_> = found.iter().map(|point| point.step).collect();
    assert_eq!(steps, [4, 5]);
    let found = between(&on, "r", (1, 3), true, 10).unwrap();
    let steps: Vec<_> = found.iter().map(|point| point.step).collect();
    assert_eq!(steps, [2, 3]);
    assert_eq!(between(&on, "r", (0, i64::MAX), true, 2).unwrap().len(), 2);
    let transaction = on.transaction().unwrap();
    let values = [("reward", 1.0)];
    set(&transaction, "r", Source::Client, (900, 0), &values).unwrap();
    transaction.commit().unwrap();
    let found = |with_clients| between(&on, "r", (4, i64::MAX), with_clients, 10).unwrap();
    let steps: Vec<_> = found(false).iter().map(|point| point.step).collect();
    assert_eq!(steps, [5], "a client's steps are its own");
    assert_eq!(found(true)[1].source, Source::Client);
    assert!(between(&on, "other", (0, 9), true, 2).unwrap().is_empty());
}
