//! ONNX files of a few nodes, written field by field as `onnx.proto` numbers them.

/// An extent of a tensor.
pub(crate) enum Extent {
    Fixed(u64),
    Named(&'static str),
}

/// A tensor's name, its element type as ONNX numbers it, and its shape.
pub(crate) type Value<'a> = (&'a str, u64, &'a [Extent]);

/// Element types.
pub(crate) const FLOAT: u64 = 1;
pub(crate) const FLOAT16: u64 = 10;
pub(crate) const INT64: u64 = 7;

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field that has a number.
pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A field that has bytes.
pub(crate) fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// An input or an output.
pub(crate) fn value(field: u64, (name, element, shape): &Value<'_>) -> Vec<u8> {
    let extent = |extent: &Extent| match extent {
        Extent::Fixed(n) => bytes(1, &number(1, *n)),
        Extent::Named(name) => bytes(1, &bytes(2, name.as_bytes())),
    };
    let shape: Vec<u8> = shape.iter().flat_map(extent).collect();
    let tensor = bytes(1, &[number(1, *element), bytes(2, &shape)].concat());
    bytes(field, &[bytes(1, name.as_bytes()), bytes(2, &tensor)].concat())
}

/// A model of nodes (operator, inputs, output).
pub(crate) fn model(nodes: &[(&str, &[&str], &str)], inputs: &[Value<'_>], outputs: &[Value<'_>]) -> Vec<u8> {
    let node = |(operator, inputs, output): &(&str, &[&str], &str)| {
        let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name.as_bytes())).collect();
        let name = format!("the_{output}");
        let rest = [bytes(2, output.as_bytes()), bytes(3, name.as_bytes()), bytes(4, operator.as_bytes())];
        bytes(1, &[inputs, rest.concat()].concat())
    };
    let mut graph: Vec<u8> = nodes.iter().flat_map(node).collect();
    graph.extend(bytes(2, b"graph"));
    graph.extend(inputs.iter().flat_map(|input| value(11, input)));
    graph.extend(outputs.iter().flat_map(|output| value(12, output)));
    let opset = [bytes(1, b""), number(2, 17)].concat();
    [number(1, 8), bytes(7, &graph), bytes(8, &opset)].concat()
}
