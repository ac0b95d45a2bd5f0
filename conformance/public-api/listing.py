"""Lists the public API of a crate from its rustdoc JSON.

Each item has a line, with its fields, variants, methods and traits below it. An item that can be
reached by several paths stands at the one inside a public module; the others point to it.

usage: listing.py CRATE.json
"""

import json
import sys

AUTO = {"StructuralPartialEq"}


class Listing:
    def __init__(self, document):
        self.index = document["index"]
        self.paths = document["paths"]
        self.root = document["root"]
        self.blocks = {}
        self.places = {}

    def item(self, id):
        return self.index.get(str(id))

    def run(self):
        root = self.item(self.root)
        self.module(root, root["name"])
        lines = []
        for path in sorted(self.blocks):
            header, members = self.blocks[path]
            lines.append(header)
            lines.extend(f"    {member}" for member in sorted(members))
        return lines

    # Items

    def module(self, module, path):
        self.blocks[path] = (f"pub mod {path}", set())
        items = [self.item(id) for id in module["inner"]["module"]["items"]]
        items = [item for item in items if item is not None]
        # Modules first, so that what they hold is listed there and not at its re-exports.
        for wanted in ("module", "other", "use"):
            for item in items:
                kind = next(iter(item["inner"]))
                if wanted == (kind if kind in ("module", "use") else "other"):
                    self.visit(item, path)

    def visit(self, item, parent, name=None):
        kind, inner = next(iter(item["inner"].items()))
        if kind == "use":
            return self.reexport(inner, parent)
        if kind == "impl" or item["visibility"] != "public":
            return None
        path = f"{parent}::{name or item['name']}"
        if item["id"] in self.places:
            if self.places[item["id"]] != path:
                self.blocks[path] = (f"pub use {path} = {self.places[item['id']]}", set())
            return None
        self.places[item["id"]] = path
        members = set()
        marks = self.marks(item)
        if kind == "module":
            return self.module(item, path)
        if kind in ("struct", "union"):
            header = self.struct(inner, path, kind, members)
        elif kind == "enum":
            header = self.enum(inner, path, members)
        elif kind == "trait":
            header = self.trait(inner, path, members)
        elif kind == "function":
            header = "pub " + self.function(inner, path)
        elif kind == "type_alias":
            generics, where = self.generics(inner["generics"])
            header = f"pub type {path}{generics} = {self.type(inner['type'])}{where}"
        elif kind in ("constant", "static"):
            word = "const" if kind == "constant" else "static"
            header = f"pub {word} {path}: {self.type(inner['type'])}"
        else:
            header = f"pub {kind} {path}"
        self.blocks[path] = (marks + header, members)
        return None

    def reexport(self, use, parent):
        target = self.item(use["id"]) if use["id"] is not None else None
        path = f"{parent}::{use['name']}"
        if use["is_glob"]:
            if target is not None and "module" in target["inner"]:
                header, members = self.blocks[parent]
                self.module(target, parent)
                self.blocks[parent] = (header, members)
            else:
                self.blocks[path] = (f"pub use {use['source']}::*", set())
        elif target is not None:
            self.visit(target, parent, use["name"])
        else:
            self.blocks[path] = (f"pub use {path} = {use['source']}", set())

    def struct(self, inner, path, kind, members):
        generics, where = self.generics(inner["generics"])
        shape = inner["kind"] if kind == "struct" else {"plain": inner}
        tuple_fields = ""
        if isinstance(shape, dict) and "tuple" in shape:
            fields = [self.item(id) if id is not None else None for id in shape["tuple"]]
            texts = [self.field(field) if field else "_" for field in fields]
            tuple_fields = f"({', '.join(texts)})"
        if isinstance(shape, dict) and "plain" in shape:
            for id in shape["plain"]["fields"]:
                field = self.item(id)
                if field["visibility"] == "public":
                    members.add(f"{field['name']}: {self.field(field)}")
        self.impls(inner["impls"], members)
        return f"pub {kind} {path}{generics}{tuple_fields}{where}"

    def field(self, field):
        return self.type(field["inner"]["struct_field"])

    def enum(self, inner, path, members):
        for id in inner["variants"]:
            variant = self.item(id)
            shape = variant["inner"]["variant"]["kind"]
            text = f"{self.marks(variant)}variant {variant['name']}"
            if isinstance(shape, dict) and "tuple" in shape:
                fields = [self.item(field) for field in shape["tuple"] if field is not None]
                text += f"({', '.join(map(self.field, fields))})"
            elif isinstance(shape, dict) and "struct" in shape:
                fields = [self.item(field) for field in shape["struct"]["fields"]]
                fields = [f"{field['name']}: {self.field(field)}" for field in fields]
                text += f" {{ {', '.join(fields)} }}"
            members.add(text)
        self.impls(inner["impls"], members)
        generics, where = self.generics(inner["generics"])
        return f"pub enum {path}{generics}{where}"

    def trait(self, inner, path, members):
        for id in inner["items"]:
            self.member(self.item(id), members)
        generics, where = self.generics(inner["generics"])
        bounds = self.bounds(inner["bounds"])
        return f"pub trait {path}{generics}{': ' + bounds if bounds else ''}{where}"

    def impls(self, ids, members):
        simple = set()
        for id in ids:
            found = self.item(id)
            if found is None:
                continue
            inner = found["inner"]["impl"]
            if inner["is_synthetic"] or inner["blanket_impl"] is not None:
                continue
            of = self.type(inner["for"])
            if inner["trait"] is None:
                for member in inner["items"]:
                    item = self.item(member)
                    if item["visibility"] == "public":
                        self.member(item, members, of if "<" in of else None)
                continue
            trait = self.path(inner["trait"])
            generics, where = self.generics(inner["generics"])
            if trait in AUTO:
                continue
            if trait == "Deserialize<'de>" and not where:
                simple.add("Deserialize")
            elif generics or where or "<" in trait or "&" in of:
                members.add(f"impl{generics} {trait} for {of}{where}")
            else:
                simple.add(trait)
        if simple:
            members.add(f"impl {', '.join(sorted(simple))}")

    def member(self, item, members, of=None):
        kind, inner = next(iter(item["inner"].items()))
        where = f" (of {of})" if of else ""
        if kind == "function":
            members.add(self.function(inner, item["name"]) + where)
        elif kind == "assoc_const":
            members.add(f"const {item['name']}: {self.type(inner['type'])}{where}")
        elif kind == "assoc_type":
            bounds = self.bounds(inner["bounds"])
            value = f" = {self.type(inner['type'])}" if inner["type"] else ""
            members.add(f"type {item['name']}{': ' + bounds if bounds else ''}{value}{where}")

    def function(self, inner, path):
        header, sig = inner["header"], inner["sig"]
        flags = (("const", "is_const"), ("async", "is_async"), ("unsafe", "is_unsafe"))
        words = [word for word, flag in flags if header[flag]]
        generics, where = self.generics(inner["generics"])
        receivers = {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}
        inputs = []
        for name, type in sig["inputs"]:
            text = f"{name}: {self.type(type)}"
            inputs.append(receivers.get(self.type(type), text) if name == "self" else text)
        output = f" -> {self.type(sig['output'])}" if sig["output"] else ""
        return " ".join([*words, "fn", f"{path}{generics}({', '.join(inputs)}){output}{where}"])

    def marks(self, item):
        texts = (json.dumps(attribute) for attribute in item["attrs"])
        return "#[non_exhaustive] " if any("non_exhaustive" in text for text in texts) else ""

    # Types

    def generics(self, generics):
        params = []
        for param in generics["params"]:
            kind, inner = next(iter(param["kind"].items()))
            if kind == "lifetime":
                params.append(param["name"])
            elif kind == "type" and not inner["is_synthetic"]:
                bounds = self.bounds(inner["bounds"])
                default = f" = {self.type(inner['default'])}" if inner["default"] else ""
                params.append(f"{param['name']}{': ' + bounds if bounds else ''}{default}")
            elif kind == "const":
                params.append(f"const {param['name']}: {self.type(inner['type'])}")
        where = []
        for predicate in generics["where_predicates"]:
            kind, inner = next(iter(predicate.items()))
            if kind == "bound_predicate":
                where.append(f"{self.type(inner['type'])}: {self.bounds(inner['bounds'])}")
            elif kind == "lifetime_predicate":
                where.append(f"{inner['lifetime']}: {' + '.join(inner['outlives'])}")
        return (f"<{', '.join(params)}>" if params else "", f" where {', '.join(where)}" if where else "")

    def bounds(self, bounds):
        texts = []
        for bound in bounds:
            kind, inner = next(iter(bound.items()))
            if kind == "trait_bound":
                modifier = {"maybe": "?", "maybe_const": "~const "}.get(inner["modifier"], "")
                texts.append(modifier + self.path(inner["trait"]))
            elif kind == "outlives":
                texts.append(inner)
        return " + ".join(texts)

    def path(self, path):
        known = self.paths.get(str(path["id"]))
        # The last part is enough to see a change; the whole path would move with every module.
        name = known["path"][-1] if known else path["path"].split("::")[-1]
        return name + self.arguments(path["args"])

    def arguments(self, args):
        if not args or args == "return_type_notation":
            return ""
        kind, inner = next(iter(args.items()))
        if kind == "parenthesized":
            output = f" -> {self.type(inner['output'])}" if inner["output"] else ""
            return f"({', '.join(map(self.type, inner['inputs']))}){output}"
        texts = []
        for arg in inner["args"]:
            if arg == "infer":
                texts.append("_")
                continue
            which, value = next(iter(arg.items()))
            texts.append(value if which == "lifetime" else self.type(value) if which == "type" else value["expr"])
        for constraint in inner["constraints"]:
            which, value = next(iter(constraint["binding"].items()))
            if which == "equality":
                texts.append(f"{constraint['name']} = {self.type(value['type']) if 'type' in value else value['constant']['expr']}")
            else:
                texts.append(f"{constraint['name']}: {self.bounds(value)}")
        return f"<{', '.join(texts)}>" if texts else ""

    def type(self, type):
        if type == "infer":
            return "_"
        kind, inner = next(iter(type.items()))
        if kind == "resolved_path":
            return self.path(inner)
        if kind in ("generic", "primitive"):
            return inner
        if kind == "tuple":
            return f"({', '.join(map(self.type, inner))})"
        if kind == "slice":
            return f"[{self.type(inner)}]"
        if kind == "array":
            return f"[{self.type(inner['type'])}; {inner['len']}]"
        if kind == "impl_trait":
            return f"impl {self.bounds(inner)}"
        if kind == "borrowed_ref":
            lifetime = f"{inner['lifetime']} " if inner["lifetime"] else ""
            return f"&{lifetime}{'mut ' if inner['is_mutable'] else ''}{self.type(inner['type'])}"
        if kind == "raw_pointer":
            return f"*{'mut' if inner['is_mutable'] else 'const'} {self.type(inner['type'])}"
        if kind == "dyn_trait":
            traits = " + ".join(self.path(found["trait"]) for found in inner["traits"])
            return f"dyn {traits}{' + ' + inner['lifetime'] if inner['lifetime'] else ''}"
        if kind == "qualified_path":
            trait = self.path(inner["trait"]) if inner["trait"] else ""
            owner = self.type(inner["self_type"])
            owner = f"<{owner} as {trait}>" if trait and owner != "Self" else owner
            return f"{owner}::{inner['name']}{self.arguments(inner['args'])}"
        if kind == "function_pointer":
            sig = inner["sig"]
            output = f" -> {self.type(sig['output'])}" if sig["output"] else ""
            return f"fn({', '.join(self.type(type) for _, type in sig['inputs'])}){output}"
        return f"<{kind}>"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(Listing(json.load(file)).run()))
