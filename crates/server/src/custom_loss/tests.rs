//! Losses against PyTorch and against finite differences, and what is refused.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput, CustomLossNode, NodeOp};
use tinkrs_types::{Datum, ModelInput, TensorData};

use super::{CompiledLoss, limits};
use tinkrs_backend::{CustomLoss as _, CustomOutput};

/// A loss that the official SDK traced and PyTorch computed; see `tests/custom_loss/make.py`.
#[derive(Deserialize)]
struct Traced {
    name: String,
    inputs: Vec<CustomLossInput>,
    graph: CustomLossGraph,
    logprobs: Numbers,
    tensors: BTreeMap<String, TensorData>,
    loss: f64,
    gradient: Vec<f64>,
    metrics: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Numbers {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Traced {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("../../tests/custom_loss/traced.json")).unwrap()
    }

    fn compile(&self) -> CompiledLoss {
        let loss = CompiledLoss::new(&self.name, &self.inputs, &self.graph);
        loss.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn datum(&self) -> Datum {
        let targets = vec![1_i64; self.logprobs.data.len()];
        let targets = TensorData::with_shape(targets, self.logprobs.shape.clone()).unwrap();
        let mut tensors = self.tensors.clone();
        tensors.insert("target_tokens".to_owned(), targets);
        Datum::new(ModelInput::from_tokens([1; 6]), tensors).unwrap()
    }
}

fn assert_close(found: f64, expected: f64, what: &str) {
    let close = (found - expected).abs() <= 1e-9 * (1.0 + expected.abs());
    assert!(close, "{what}: {found} instead of {expected}");
}

#[test]
fn traced_losses_are_what_pytorch_makes_of_them() {
    for traced in Traced::all() {
        let (loss, datum) = (traced.compile(), traced.datum());
        loss.check(&datum).unwrap();
        let found = loss.evaluate(&traced.logprobs.data, &datum);
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        assert_close(found.loss, traced.loss, &traced.name);
        assert_eq!(found.gradient.len(), traced.gradient.len());
        for (index, (found, expected)) in found.gradient.iter().zip(&traced.gradient).enumerate() {
            assert_close(*found, *expected, &format!("{} by {index}", traced.name));
        }
        let metrics: BTreeMap<_, _> = found.metrics.into_iter().collect();
        assert!(metrics.keys().eq(traced.metrics.keys()), "{}", traced.name);
        for (name, expected) in &traced.metrics {
            assert_close(metrics[name], *expected, &format!("{} {name}", traced.name));
        }
    }
}

#[test]
fn gradients_are_finite_differences() {
    const H: f64 = 1e-6;
    for traced in Traced::all() {
        // What was detached has a value and, on purpose, no gradient.
        if ["elements"].contains(&traced.name.as_str()) {
            continue;
        }
        let loss = traced.compile();
        let datum = traced.datum();
        let mut inputs = loss.tensors(&traced.logprobs.data, &datum).unwrap();
        let gradient = loss.run(inputs.clone()).unwrap().gradient;
        for (index, found) in gradient.iter().enumerate() {
            let center = inputs[0].values[index];
            let mut at = |value: f64| {
                inputs[0].values[index] = value;
                loss.run(inputs.clone()).unwrap().loss
            };
            let around = (at(center + H) - at(center - H)) / (2.0 * H);
            at(center);
            let close = (found - around).abs() < 1e-5 * (1.0 + around.abs());
            let name = &traced.name;
            assert!(close, "{name} by {index}: {found} instead of {around}");
        }
    }
}

fn node(op: NodeOp, name: &str, target: &str, args: Json, kwargs: Json) -> CustomLossNode {
    CustomLossNode {
        op,
        name: name.to_owned(),
        target: target.to_owned(),
        args: args.as_array().cloned().unwrap_or_default(),
        kwargs: kwargs.as_object().cloned().unwrap_or_default(),
    }
}

fn function(name: &str, target: &str, args: Json) -> CustomLossNode {
    node(NodeOp::CallFunction, name, target, args, json!({}))
}

/// A graph of these nodes between the inputs and `loss`, which is what it returns.
fn graph(inputs: &[CustomLossInput], nodes: Vec<CustomLossNode>) -> CustomLossGraph {
    let placeholder = |input: &CustomLossInput| {
        node(
            NodeOp::Placeholder,
            &input.name,
            &input.name,
            json!([]),
            json!({}),
        )
    };
    let output = json!([{"tuple": [{"ref": "loss"}, {"dict": {}}]}]);
    let mut all: Vec<_> = inputs.iter().map(placeholder).collect();
    all.extend(nodes);
    all.push(node(NodeOp::Output, "output", "output", output, json!({})));
    CustomLossGraph::new(all)
}

fn inputs(ranks: &[(&str, u8)]) -> Vec<CustomLossInput> {
    let input = |(name, rank): &(&str, u8)| CustomLossInput {
        name: (*name).to_owned(),
        rank: *rank,
    };
    ranks.iter().map(input).collect()
}

fn total() -> CustomLossNode {
    function("loss", "torch.sum", json!([{"ref": "logprobs"}]))
}

/// What is said of a loss of one rank-1 input with these nodes.
fn refusal(nodes: Vec<CustomLossNode>) -> String {
    let inputs = inputs(&[("logprobs", 1), ("mask", 1)]);
    let graph = graph(&inputs, nodes);
    let refused = CompiledLoss::new("loss", &inputs, &graph);
    refused.expect_err("this must be refused").to_string()
}

#[test]
fn what_this_server_does_not_know_is_refused_by_name() {
    let x = || json!([{"ref": "logprobs"}]);
    for target in [
        "torch.svd",
        "os.system",
        "torch.load",
        "eval",
        "operator.attrgetter",
        "math.gamma",
    ] {
        let error = refusal(vec![function("a", target, x()), total()]);
        assert!(error.contains(&format!("function `{target}`")), "{error}");
        assert!(error.contains("graph.nodes[2].target"), "{error}");
    }
    for target in ["item", "backward", "__class__", "add_", "tolist"] {
        let call = node(NodeOp::CallMethod, "a", target, x(), json!({}));
        let error = refusal(vec![call, total()]);
        assert!(error.contains(&format!("method `{target}`")), "{error}");
    }
    let attribute = function("a", "getattr", json!([{"ref": "logprobs"}, "__dict__"]));
    let error = refusal(vec![attribute, total()]);
    assert!(error.contains("`__dict__`"), "{error}");
    for op in [NodeOp::GetAttr, NodeOp::CallModule] {
        let error = refusal(vec![node(op, "a", "weight", json!([]), json!({})), total()]);
        assert!(error.contains("graph.nodes[2].op"), "{error}");
    }
}

#[test]
fn everything_that_our_own_client_traces_is_known() {
    let functions = "operator.neg operator.add operator.sub operator.mul operator.truediv \
        operator.pow operator.ne operator.getitem torch.exp torch.log torch.sqrt torch.abs \
        torch.sigmoid torch._C._nn.log_sigmoid torch._C._nn.softplus torch.tanh torch.relu \
        torch.clamp torch.minimum torch.maximum torch.where torch.logsumexp torch.dot torch.cat \
        torch.stack";
    for target in functions.split_whitespace() {
        assert!(super::functions::find(false, target).is_some(), "{target}");
    }
    for target in ["sum", "mean", "unsqueeze", "detach"] {
        assert!(super::functions::find(true, target).is_some(), "{target}");
    }
}

#[test]
fn what_is_wrong_at_any_size_is_refused_with_its_node() {
    let call = |target: &str, args: Json| vec![function("a", target, args), total()];
    let with = |kwargs: Json| {
        let args = json!([{"ref": "logprobs"}]);
        vec![
            node(NodeOp::CallFunction, "a", "torch.sum", args, kwargs),
            total(),
        ]
    };
    let lp = || json!({"ref": "logprobs"});
    let deep = (0..20).fold(json!(1), |inner, _| json!([inner]));
    let cases = [
        (call("torch.exp", json!([])), "no `input`"),
        (
            call("torch.exp", json!([3])),
            "`a` (torch.exp): `input` is a number",
        ),
        (call("torch.exp", json!([lp(), 1, 2])), "args"),
        (call("torch.exp", json!([{"ref": "nobody"}])), "`nobody`"),
        (call("torch.exp", json!([{"ref": "loss"}])), "`loss`"),
        (call("torch.exp", json!([{"eval": "1"}])), "args"),
        (
            call("torch.exp", json!([{"ref": "logprobs", "x": 1}])),
            "args",
        ),
        (call("torch.stack", json!([deep])), "levels"),
        (
            call("torch.stack", json!([vec![1; limits::ITEMS + 1]])),
            "items",
        ),
        (call("math.log", json!([lp()])), "use the function of torch"),
        (call("operator.getitem", json!([lp(), [0, 0]])), "rank 1"),
        (
            call(
                "operator.getitem",
                json!([lp(), {"slice": [null, null, -1]}]),
            ),
            "step",
        ),
        (call("torch.cat", json!([[]])), "at least one"),
        (
            call("torch.where", json!([lp(), lp(), lp()])),
            "truth values",
        ),
        (call("operator.and_", json!([lp(), lp()])), "truth values"),
        (with(json!({"dim": 3})), "no dimension 3"),
        (with(json!({"out": lp()})), "`out`"),
        (with(json!({"colour": 1})), "`colour`"),
        (with(json!({"dtype": {"dtype": "bfloat16"}})), "bfloat16"),
        (with(json!({"dtype": {"device": "cuda"}})), "cuda"),
        (vec![function("loss", "torch.exp", json!([lp()]))], "scalar"),
        (
            vec![function("loss", "torch.sum", json!([{"ref": "mask"}]))],
            "does not depend",
        ),
        (
            vec![function("loss", "getattr", json!([lp(), "shape"]))],
            "must be a tensor",
        ),
        (
            vec![
                function("a", "torch.mul", json!([lp(), 2])),
                function("b", "operator.iadd", json!([{"ref": "a"}, 1])),
                function("loss", "torch.sum", json!([{"ref": "a"}])),
            ],
            "in place",
        ),
        (vec![total(), total()], "no other node"),
    ];
    for (nodes, expected) in cases {
        let called = nodes[0].target.clone();
        let error = refusal(nodes);
        assert!(error.contains(expected), "{called}, {expected}: {error}");
    }
}

#[test]
fn graphs_and_inputs_have_a_form_and_bounds() {
    let good = inputs(&[("logprobs", 1)]);
    let new = |inputs: &[CustomLossInput], graph: &CustomLossGraph| {
        CompiledLoss::new("loss", inputs, graph)
            .unwrap_err()
            .to_string()
    };
    let cases = [
        (inputs(&[]), "inputs"),
        (inputs(&[("mask", 1)]), "inputs[0].name"),
        (inputs(&[("logprobs", 0)]), "inputs[0].rank"),
        (inputs(&[("logprobs", 1), ("Mask", 1)]), "inputs[1].name"),
        (
            inputs(&[("logprobs", 1), ("logprobs", 1)]),
            "inputs[1].name",
        ),
        (inputs(&[("logprobs", 1), ("mask", 3)]), "inputs[1].rank"),
        (inputs(&[("logprobs", 1); 17]), "inputs"),
    ];
    for (bad, expected) in cases {
        let error = new(&bad, &graph(&good, vec![total()]));
        assert!(error.contains(expected), "{error}");
    }
    let mut wrong = graph(&good, vec![total()]);
    wrong.format = 2;
    assert!(new(&good, &wrong).contains("graph.format"));
    let exp = |index: usize| {
        function(
            &format!("n{index}"),
            "torch.exp",
            json!([{"ref": "logprobs"}]),
        )
    };
    let many = (0..limits::NODES).map(exp).collect();
    assert!(new(&good, &graph(&good, many)).contains("graph.nodes"));
    assert!(new(&good, &CustomLossGraph::new(vec![])).contains("graph.nodes"));
    let two = inputs(&[("logprobs", 1), ("mask", 1)]);
    assert!(new(&two, &graph(&good, vec![total()])).contains("placeholder"));
    let error = CompiledLoss::new("", &good, &graph(&good, vec![total()])).unwrap_err();
    assert!(error.to_string().contains("name"), "{error}");
}

#[test]
fn metrics_have_names_of_their_own() {
    let inputs = inputs(&[("logprobs", 1)]);
    for (name, is_good) in [
        ("custom/a.b/c-1_x:sum", true),
        ("custom/a:mean", true),
        ("custom/a:max", false),
        ("custom/:sum", false),
        ("custom/A:sum", false),
        ("loss:sum", false),
    ] {
        let mut graph = graph(&inputs, vec![total()]);
        let metrics = Map::from_iter([(name.to_owned(), json!({"ref": "loss"}))]);
        let output = json!({"tuple": [{"ref": "loss"}, {"dict": metrics}]});
        graph.nodes.last_mut().unwrap().args = vec![output];
        let made = CompiledLoss::new("loss", &inputs, &graph);
        assert_eq!(made.is_ok(), is_good, "{name}: {:?}", made.err());
    }
}

fn evaluate(nodes: Vec<CustomLossNode>, logprobs: &[f32]) -> Result<CustomOutput, String> {
    let inputs = inputs(&[("logprobs", 1)]);
    let loss = CompiledLoss::new("mine", &inputs, &graph(&inputs, nodes)).unwrap();
    let targets = TensorData::without_shape(vec![1_i64; logprobs.len()]);
    let tensors = BTreeMap::from([("target_tokens".to_owned(), targets)]);
    let tokens = ModelInput::from_tokens(vec![1; logprobs.len()]);
    loss.evaluate(logprobs, &Datum::new(tokens, tensors).unwrap())
}

#[test]
fn what_is_wrong_with_a_size_names_the_loss_and_the_node() {
    let slice = function(
        "part",
        "operator.getitem",
        json!([{"ref": "logprobs"}, {"slice": [2, null, null]}]),
    );
    let product = function(
        "both",
        "operator.mul",
        json!([{"ref": "part"}, {"ref": "logprobs"}]),
    );
    let error = evaluate(vec![slice, product, total()], &[-1.0; 4]).unwrap_err();
    assert_eq!(
        error,
        "loss `mine`: node `both` (operator.mul): shapes [2] and [4] do not fit together"
    );
}

#[test]
fn a_loss_that_needs_too_much_memory_ends_before_it_has_it() {
    let column = function(
        "column",
        "torch.unsqueeze",
        json!([{"ref": "logprobs"}, -1]),
    );
    let square = function(
        "square",
        "operator.mul",
        json!([{"ref": "column"}, {"ref": "logprobs"}]),
    );
    let sum = function("loss", "torch.sum", json!([{"ref": "square"}]));
    let nodes = vec![column, square, sum];
    assert!(evaluate(nodes.clone(), &[-1.0; 100]).is_ok());
    let error = evaluate(nodes, &vec![-1.0; 100_000]).unwrap_err();
    assert!(
        error.contains("`square`") && error.contains("more numbers"),
        "{error}"
    );
    let huge = function("huge", "torch.zeros", json!([i64::MAX, i64::MAX, 4]));
    let error = evaluate(vec![huge, total()], &[-1.0]).unwrap_err();
    assert!(error.contains("`huge`"), "{error}");
}

#[test]
fn a_masked_cell_contributes_nothing_whatever_it_holds() {
    // d/dx of where(x > -2, log(1 + x), 0) at -3 would be 0 times not-a-number.
    let x = || json!({"ref": "logprobs"});
    let nodes = vec![
        function("mask", "operator.gt", json!([x(), -1])),
        function("log", "torch.log1p", json!([x()])),
        function(
            "kept",
            "torch.where",
            json!([{"ref": "mask"}, {"ref": "log"}, 0.0]),
        ),
        function("loss", "torch.sum", json!([{"ref": "kept"}])),
    ];
    let found = evaluate(nodes, &[-0.5, -3.0, f32::NEG_INFINITY]).unwrap();
    assert_eq!(found.gradient, [2.0, 0.0, 0.0]);
    assert_eq!(found.loss, 0.5_f64.ln());
}

#[test]
fn a_datum_must_have_the_tensors_of_the_loss_and_may_have_more() {
    let traced = Traced::all().swap_remove(0);
    let loss = traced.compile();
    let datum = |change: &dyn Fn(&mut BTreeMap<String, TensorData>)| {
        let mut tensors = traced.datum().loss_fn_inputs().clone();
        change(&mut tensors);
        Datum::new(ModelInput::from_tokens([1; 6]), tensors).unwrap()
    };
    let tensors = |change: &dyn Fn(&mut BTreeMap<String, TensorData>)| {
        loss.check(&datum(change)).unwrap_err().to_string()
    };
    let error = tensors(&|tensors| drop(tensors.remove("mask")));
    assert!(
        error.contains("`mask`: found nothing, expected rank 1"),
        "{error}"
    );
    let error = tensors(&|tensors| {
        let scalar = TensorData::with_shape(vec![1.0_f32], Vec::new()).unwrap();
        tensors.insert("mask".to_owned(), scalar);
    });
    assert!(error.contains("found rank 0"), "{error}");
    let with_more = datum(&|tensors| {
        tensors.insert(
            "rewards".to_owned(),
            TensorData::without_shape(vec![1.0_f32; 6]),
        );
    });
    loss.check(&with_more).unwrap();
    let logprobs = [-1.0; 6];
    let losses = [&with_more, &traced.datum()].map(|datum| loss.evaluate(&logprobs, datum));
    let [more, exact] = losses.map(|output| output.unwrap().loss);
    assert_eq!(more, exact);
}

#[test]
fn a_spread_of_nothing_has_no_slope() {
    // The derivative of the root at 0 is infinite; times the square's, 0, that was not a number.
    for unbiased in [false, true] {
        let x = json!([{"ref": "logprobs"}, 0, unbiased]);
        let nodes = vec![
            function("spread", "torch.std", x),
            function("loss", "torch.sum", json!([{"ref": "spread"}])),
        ];
        let found = evaluate(nodes, &[-2.0, -2.0]).unwrap();
        assert_eq!((found.loss, found.gradient), (0.0, vec![0.0, 0.0]));
    }
}

#[test]
fn lists_of_lists_do_not_double_without_end() {
    let all = || json!({"slice": [null, null, null]});
    let mut nodes = vec![function(
        "n0",
        "getattr",
        json!([{"ref": "logprobs"}, "shape"]),
    )];
    for index in 1..60 {
        let last = json!({"ref": format!("n{}", index - 1)});
        let pair = json!([[last, last], all()]);
        nodes.push(function(&format!("n{index}"), "operator.getitem", pair));
    }
    nodes.push(total());
    let error = refusal(nodes);
    assert!(error.contains("too many items"), "{error}");
}

/// The paths of all places of a document that hold no others.
fn leaves(value: &Json, path: &str, found: &mut Vec<String>) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match value {
        Json::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                leaves(item, &format!("{path}/{index}"), found);
            }
        }
        Json::Object(members) if !members.is_empty() && !members.contains_key("ref") => {
            for (name, member) in members {
                leaves(member, &format!("{path}/{}", escaped(name)), found);
            }
        }
        // Another `op` or `format` would not even be read.
        _ if ["/args", "/target"].iter().any(|part| path.contains(part)) => {
            found.push(path.to_owned());
        }
        _ => {}
    }
}

#[test]
fn no_change_of_a_graph_makes_it_panic() {
    let mut random = fastrand::Rng::with_seed(1);
    let traced = Traced::all();
    let targets: Vec<_> = traced
        .iter()
        .flat_map(|traced| &traced.graph.nodes)
        .collect();
    let (mut refused, mut failed, mut fine) = (0, 0, 0);
    for _ in 0..1500 {
        let traced = random.choice(&traced).unwrap();
        let mut document = serde_json::to_value(&traced.graph).unwrap();
        for _ in 0..random.usize(1..3) {
            let other = random.choice(&targets).unwrap();
            let pool = [
                json!(other.target),
                json!(other.name),
                json!({"ref": other.name}),
                json!(random.i64(-4..8)),
                json!(i64::MIN),
                json!(random.f64() * 4.0 - 2.0),
                json!({"float": "nan"}),
                json!({"slice": [random.i64(-9..9), null, random.i64(-1..3)]}),
                json!({"tuple": [0, {"ellipsis": true}, null]}),
                json!([]),
                json!(null),
                json!(true),
            ];
            let mut places = Vec::new();
            leaves(&document, "", &mut places);
            let place = document.pointer_mut(random.choice(&places).unwrap());
            *place.unwrap() = random.choice(pool).unwrap();
        }
        let Ok(graph) = serde_json::from_value(document) else {
            continue;
        };
        match CompiledLoss::new(&traced.name, &traced.inputs, &graph) {
            Err(_) => refused += 1,
            Ok(loss) => match loss.evaluate(&traced.logprobs.data, &traced.datum()) {
                Err(_) => failed += 1,
                Ok(_) => fine += 1,
            },
        }
    }
    // All three ways were taken, or this test would say little.
    assert!(
        refused > 100 && failed > 10 && fine > 50,
        "{refused} {failed} {fine}"
    );
}
