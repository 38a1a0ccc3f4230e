//! Evaluates a [`filter.where`](super::parse) expression over a record batch, column by column,
//! with SQL's three-valued logic. Numbers are `f64`. A number that is not finite (NaN in a column,
//! a division by zero) is null.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, RecordBatch, StringArray};
use arrow::compute::kernels::{cmp, comparison};
use arrow::compute::{and_kleene, cast, is_null, not, or_kleene};
use arrow::datatypes::{DataType, Float64Type, Schema};
use sqlparser::tokenizer::Location;

use crate::columns::typed::{is_number, is_text, shortest_decimal_of_f32};
use crate::error::{Error, Result};
use crate::filter::where_expression::parse::{Expression, Node, Operator, Term, expression_error};

/// The values of a node, one per row.
#[derive(Clone)]
enum Values {
    Numbers(Float64Array),
    Text(StringArray),
    Booleans(BooleanArray),
    /// Nulls without a type; their number.
    Nulls(usize),
}

impl Expression {
    /// Checks columns and types.
    ///
    /// # Errors
    /// If a column is missing or has a type that cannot be used, or if the sides of an operator
    /// have different types.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        self.evaluate(&RecordBatch::new_empty(Arc::new(schema.clone()))).map(drop)
    }

    /// Evaluates the expression: true, false or null for each row.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        self.root.booleans(batch)
    }
}

impl Term {
    fn evaluate(&self, batch: &RecordBatch) -> Result<Values> {
        let rows = batch.num_rows();
        Ok(match &self.node {
            Node::Column(name) => column_values(batch, name, self.at)?,
            Node::Number(value) => Values::Numbers(Float64Array::from_value(*value, rows)),
            Node::Text(text) => Values::Text(StringArray::from_iter_values(std::iter::repeat_n(text, rows))),
            Node::Boolean(value) => Values::Booleans(BooleanArray::from(vec![*value; rows])),
            Node::Null => Values::Nulls(rows),
            Node::Negate(one) => Values::Numbers(one.numbers(batch)?.unary(|value| 0.0 - value)),
            Node::Not(one) => Values::Booleans(not(&one.booleans(batch)?)?),
            Node::Binary(operator, left, right) => self.binary(*operator, left, right, batch)?,
            Node::In(one, list) => Values::Booleans(self.is_in(one, list, batch)?),
            Node::IsNull(one) => Values::Booleans(is_null(&one.evaluate(batch)?.to_array())?),
            Node::Like(one, pattern) => {
                let pattern = StringArray::new_scalar(pattern);
                Values::Booleans(comparison::like(&one.text(batch)?, &pattern)?)
            }
            Node::Lower(one) => {
                let text = one.text(batch)?;
                Values::Text(text.iter().map(|text| text.map(str::to_lowercase)).collect())
            }
            Node::Length(one) => {
                let text = one.text(batch)?;
                Values::Numbers(
                    text.iter().map(|text| text.map(|text| text.chars().count() as f64)).collect(),
                )
            }
        })
    }

    fn binary(&self, operator: Operator, left: &Self, right: &Self, batch: &RecordBatch) -> Result<Values> {
        let arithmetic = |f: fn(f64, f64) -> f64| -> Result<Values> {
            let (left, right) = (left.numbers(batch)?, right.numbers(batch)?);
            let pairs = left.iter().zip(right.iter());
            Ok(Values::Numbers(pairs.map(|(a, b)| comparable(f(a?, b?))).collect()))
        };
        match operator {
            Operator::And => {
                Ok(Values::Booleans(and_kleene(&left.booleans(batch)?, &right.booleans(batch)?)?))
            }
            Operator::Or => Ok(Values::Booleans(or_kleene(&left.booleans(batch)?, &right.booleans(batch)?)?)),
            Operator::Add => arithmetic(|a, b| a + b),
            Operator::Subtract => arithmetic(|a, b| a - b),
            Operator::Multiply => arithmetic(|a, b| a * b),
            Operator::Divide => arithmetic(|a, b| a / b),
            comparison => {
                let (left, right) = (left.evaluate(batch)?, right.evaluate(batch)?);
                Ok(Values::Booleans(compare(comparison, &left, &right, self.at)?))
            }
        }
    }

    /// `one = list[0] or one = list[1] or ...`
    fn is_in(&self, one: &Self, list: &[Self], batch: &RecordBatch) -> Result<BooleanArray> {
        let one = one.evaluate(batch)?;
        let mut found = BooleanArray::from(vec![false; batch.num_rows()]);
        for item in list {
            let equal = compare(Operator::Equal, &one, &item.evaluate(batch)?, item.at)?;
            found = or_kleene(&found, &equal)?;
        }
        Ok(found)
    }

    fn booleans(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        match self.evaluate(batch)? {
            Values::Booleans(values) => Ok(values),
            Values::Nulls(rows) => Ok(BooleanArray::new_null(rows)),
            other => Err(self.type_error("a condition", &other)),
        }
    }

    fn numbers(&self, batch: &RecordBatch) -> Result<Float64Array> {
        match self.evaluate(batch)? {
            Values::Numbers(values) => Ok(values),
            Values::Nulls(rows) => Ok(Float64Array::new_null(rows)),
            other => Err(self.type_error("a number", &other)),
        }
    }

    fn text(&self, batch: &RecordBatch) -> Result<StringArray> {
        match self.evaluate(batch)? {
            Values::Text(values) => Ok(values),
            Values::Nulls(rows) => Ok(StringArray::new_null(rows)),
            other => Err(self.type_error("a string", &other)),
        }
    }

    fn type_error(&self, what: &str, found: &Values) -> Error {
        expression_error(self.at, format!("expected {what}, found {}", found.type_name()))
    }
}

impl Values {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Numbers(_) => "a number",
            Self::Text(_) => "a string",
            Self::Booleans(_) => "a boolean",
            Self::Nulls(_) => "null",
        }
    }

    fn to_array(&self) -> ArrayRef {
        match self {
            Self::Numbers(values) => Arc::new(values.clone()),
            Self::Text(values) => Arc::new(values.clone()),
            Self::Booleans(values) => Arc::new(values.clone()),
            Self::Nulls(rows) => Arc::new(BooleanArray::new_null(*rows)),
        }
    }
}

fn compare(operator: Operator, left: &Values, right: &Values, at: Location) -> Result<BooleanArray> {
    if let (Values::Nulls(rows), _) | (_, Values::Nulls(rows)) = (left, right) {
        return Ok(BooleanArray::new_null(*rows));
    }
    if left.type_name() != right.type_name() {
        return Err(expression_error(
            at,
            format!("cannot compare {} with {}", left.type_name(), right.type_name()),
        ));
    }
    let (left, right) = (left.to_array(), right.to_array());
    Ok(match operator {
        Operator::NotEqual => cmp::neq(&left, &right),
        Operator::Less => cmp::lt(&left, &right),
        Operator::LessOrEqual => cmp::lt_eq(&left, &right),
        Operator::Greater => cmp::gt(&left, &right),
        Operator::GreaterOrEqual => cmp::gt_eq(&left, &right),
        _ => cmp::eq(&left, &right),
    }?)
}

/// A number that can be compared: finite, and +0 for -0, because Arrow's order distinguishes them.
fn comparable(value: f64) -> Option<f64> {
    value.is_finite().then_some(value + 0.0)
}

fn column_values(batch: &RecordBatch, name: &str, at: Location) -> Result<Values> {
    let Some(column) = batch.column_by_name(name) else {
        let names: Vec<_> = batch.schema().fields().iter().map(|f| format!("`{}`", f.name())).collect();
        return Err(expression_error(
            at,
            format!("there is no column `{name}`; the columns are {}", names.join(", ")),
        ));
    };
    let data_type = column.data_type();
    Ok(match data_type {
        DataType::Null => Values::Nulls(column.len()),
        DataType::Boolean => Values::Booleans(column.as_boolean().clone()),
        _ if is_number(data_type) => {
            let numbers = cast(column, &DataType::Float64)?;
            let convert =
                if *data_type == DataType::Float32 { shortest_decimal_of_f32 } else { |number| number };
            let numbers = numbers.as_primitive::<Float64Type>().iter();
            Values::Numbers(numbers.map(|n| n.map(convert).and_then(comparable)).collect())
        }
        _ if is_text(data_type) => Values::Text(cast(column, &DataType::Utf8)?.as_string().clone()),
        _ => {
            let problem =
                format!("column `{name}` is {data_type}; a filter can use numbers, strings and booleans");
            return Err(expression_error(at, problem));
        }
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, DictionaryArray, Float32Array, Int64Array};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn table() -> RecordBatch {
        RecordBatch::try_from_iter([
            (
                "x",
                Arc::new(Float64Array::from(vec![Some(1.0), None, Some(f64::NAN), Some(-0.0)])) as ArrayRef,
            ),
            ("n", Arc::new(Int64Array::from(vec![Some(2), Some(0), None, Some(-4)]))),
            ("s", Arc::new(StringArray::from(vec![Some("Über"), Some("a%b"), None, Some("")]))),
            (
                "tag",
                Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("NSFW"), None, Some("SFW"), None])),
            ),
            ("ok", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
            ("blob", Arc::new(BinaryArray::from_vec(vec![b"x"; 4]))),
        ])
        .unwrap()
    }

    fn evaluate(text: &str) -> Vec<Option<bool>> {
        Expression::parse(text).unwrap().evaluate(&table()).unwrap().iter().collect()
    }

    #[test]
    fn nulls_follow_three_valued_logic() {
        let (t, f, n) = (Some(true), Some(false), None);
        let cases = [
            ("x >= 1", [t, n, n, f]),
            ("x = 0", [f, n, n, t]),
            ("x is null", [f, t, t, f]),
            ("x is not null and n / x > 1", [t, f, f, n]),
            ("not (tag == 'NSFW')", [f, n, t, n]),
            ("tag = 'NSFW' or ok", [t, n, n, t]),
            ("n in (2, null)", [t, n, n, n]),
            ("n not in (2, -4)", [f, t, n, f]),
            ("n between -4 and 0", [f, t, n, t]),
            ("lower(s) like '_ber'", [t, f, n, f]),
            ("length(s) * 2 = 8", [t, f, n, f]),
            ("s not like 'a%'", [t, f, n, t]),
            ("-n + 1 < 0 - 0.5", [t, f, n, f]),
            ("null", [n; 4]),
            ("ok = true", [t, f, n, t]),
        ];
        for (text, expected) in cases {
            assert_eq!(evaluate(text), expected, "{text}");
        }
    }

    #[test]
    fn f32_columns_compare_as_their_shortest_decimals() {
        let column: ArrayRef = Arc::new(Float32Array::from(vec![4.1, 0.1, f32::NAN]));
        let table = RecordBatch::try_from_iter([("s", column)]).unwrap();
        for (text, expected) in
            [("s >= 4.1", [true, false]), ("s <= 0.1", [false, true]), ("s in (4.1, 0.1)", [true, true])]
        {
            let found = Expression::parse(text).unwrap().evaluate(&table).unwrap();
            assert_eq!([found.value(0), found.value(1)], expected, "{text}");
            assert!(found.is_null(2));
        }
    }

    #[test]
    fn type_errors_are_reported_with_their_position() {
        let cases = [
            ("n + 1", "character 1: expected a condition, found a number"),
            ("ok and nope > 1", "character 8: there is no column `nope`; the columns are `x`, `n`"),
            ("s > 1", "character 1: cannot compare a string with a number"),
            ("n in (1, 'a')", "character 10: cannot compare a number with a string"),
            ("ok and blob = 'x'", "character 8: column `blob` is Binary"),
            ("lower(n) = 'x'", "character 7: expected a string, found a number"),
            ("n + s > 1", "character 5: expected a number, found a string"),
            ("not n", "expected a condition"),
        ];
        for (text, expected) in cases {
            let error = Expression::parse(text).unwrap().check(&table().schema()).unwrap_err().to_string();
            assert!(error.starts_with("filter.where: ") && error.contains(expected), "{text}: {error}");
        }
    }
}
