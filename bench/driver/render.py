"""Writes results.md from results.json."""

SECTIONS = {
    "client": ("Client", "Against a server that answers at once (`null_server`), on this machine; prompts of 1,000 tokens, "
               "samples of 128. In flight means submitted and not yet answered: both SDKs send a limited number at a time."),
    "python": ("Python callers", "The same program with `tinkrs.sdk` and with the official SDK in its place, against `null_server`: prompts of 1,000 tokens, samples of "
               "128, results in the official types."),
    "wire": ("Wire", "Without any I/O. Each program reports its fastest turn."),
    "engine": ("Engine", "Both sides in f32, on all cores, with the same shapes. Sampling includes reading a prompt of 16 "
               "tokens, and draws at temperature 1 with log-probabilities."),
    "limits": ("Engine and the limits of the machine", "What the engine does beside the best that this machine can do, measured in turns; the ratio is the share of it. Decoding one sequence reads "
               "all weights for each token (and, with their compute, a prompt of 16 tokens, which the share includes). Arithmetic counts each product with a weight and of attention, forward and "
               "backward, once: what is computed twice to save memory is not counted. A limit of multiply-adds is of f32."),
    "llama": ("Engine and llama.cpp", "Both sides read the same GGUF file, without adapters, on all cores unless a row says one thread (on a busy machine, "
              "threads of llama.cpp spend their time waiting for each other); llama.cpp is `llama-server`, which "
              "always computes with activations of the weights' kind (bf16, or eight bits). A prompt is read for one token."),
    "server": ("Server", "An RL step samples a group, computes importance-sampling gradients, updates, saves the weights and "
               "opens them for sampling. With two clients, the server computes the same on both sides, and most of the time. SkyRL "
               "is measured on the CPU, where it runs on JAX; it is made for GPUs. Memory is that of all processes of a server."),
    "studio": ("Studio", "Server time and bytes of what the pages of a folder of many runs read, and what four open pages cost a run that "
               "trains: the ratio is that of the step without them to the step with them. One run was written through the server, the others "
               "are copies of its rows. A series has at most 4,096 points; those of longer runs stand for several steps each."),
    "endpoints": ("Endpoints", "`/v1` of `tinkrs serve` beside `llama-server` of llama.cpp, built from the source package of `llama-cpp-python`, on one GGUF file. "
                  "Prompts have nothing in common, so no cache helps either side. CPU is that of the server's process, all threads."),
    "growth": ("Growth", "The exponent of cost when one thing grows tenfold: 1 is proportional, 0 does not grow, 2 is quadratic."),
}


def number(value):
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def with_spread(values):
    return f"{number(values['median'])} ({number(values['min'])}–{number(values['max'])})"


def comparison(row):
    first, *second = row["sides"]
    unit, ratio = row["unit"], row["ratio"]
    metric = f"{row['metric']}, {unit}" + (f" ({row['clock']})" if row["clock"] != "memory" else "")
    cells = [row["what"], metric, with_spread(first), f"{with_spread(second[0])} {second[0]['name']}" if second else "",
             f"**{number(ratio['median'])}** ({number(ratio['min'])}–{number(ratio['max'])})" if ratio else ""]
    return "| " + " | ".join(cells) + " |"


def growth(row):
    small, large = row["points"]
    exponent = row["exponent"]
    cells = [row["what"], row["side"], f"{row['metric']}, {row['unit']}", f"{row['variable']} {small['at']:,} → {large['at']:,}",
             f"{number(small['median'])} → {number(large['median'])}",
             f"**{exponent['median']:.2f}** ({exponent['min']:.2f}–{exponent['max']:.2f})" if exponent else ""]
    return "| " + " | ".join(cells) + " |"


def table(name, rows):
    if name == "growth":
        return ["| What | Side | Cost | From → to | Medians | Exponent (range) |", "|---|---|---|---|---|---|", *map(growth, rows)]
    return ["| What | Number | Tinkrs | Compared with | Times as good (range) |", "|---|---|---|---|---|", *map(comparison, rows)]


def commands(rows):
    """Every command once, in the order of the rows."""
    sides = (side for row in rows for side in row.get("sides") or row["points"])
    return list(dict.fromkeys(side["command"] for side in sides))


def facts(section):
    machine, versions = section["machine"], section["versions"]
    return [
        f"- {section['date']}, {section['rounds']} rounds or more, in turns, {section['seconds']:.0f} s; load average before: {section['load']}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['kernel']}",
        "- " + ", ".join(f"{name} {version.removeprefix('rustc ')}" for name, version in versions.items()),
    ]


def markdown(results):
    lines = [
        "# Results",
        "",
        "Written by `bench/run`; [README.md](README.md) says how to read and repeat it. Each cell is the median with the least and",
        "the most; a ratio is the median of the ratios of neighbouring rounds, and above 1 where Tinkrs is better.",
    ]
    for name, (heading, note) in SECTIONS.items():
        if name not in results["sections"]:
            continue
        section = results["sections"][name]
        lines += ["", f"## {heading}", "", note, "", *table(name, section["rows"]), "", *facts(section)]
        lines += ["", "<details><summary>Commands</summary>", "", "```sh", *commands(section["rows"]), "```", "", "</details>"]
    return "\n".join(lines) + "\n"
