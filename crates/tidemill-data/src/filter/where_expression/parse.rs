//! Parses `filter.where`, a boolean SQL expression over source columns. The `sqlparser` crate
//! parses it; its tree is converted to the few nodes that a filter may use, each with its position
//! in the text for error messages.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, UnaryOperator,
    Value,
};
use sqlparser::dialect::GenericDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use crate::error::{Error, Result};

/// The configuration key for messages.
pub(crate) const KEY: &str = "filter.where";

/// Most bytes of an expression. Longer ones are lists, which belong in a file.
const MAX_BYTES: usize = 16 * 1024;

/// Most operators. Together with the nesting this bounds the depth of the tree.
const MAX_OPERATORS: usize = 200;
/// Most brackets or `not` within each other.
const MAX_NESTING: usize = 20;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    pub(crate) root: Term,
}

/// A node with its position in the text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    pub at: Location,
    pub node: Node,
}

/// A node of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Column(String),
    Number(f64),
    Text(String),
    Boolean(bool),
    Null,
    Negate(Box<Term>),
    Not(Box<Term>),
    Binary(Operator, Box<Term>, Box<Term>),
    In(Box<Term>, Vec<Term>),
    IsNull(Box<Term>),
    /// `%` matches any characters, `_` exactly one.
    Like(Box<Term>, String),
    Lower(Box<Term>),
    Length(Box<Term>),
}

/// A binary operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    And,
    Or,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Expression {
    /// Parses an expression. Columns and types are checked later, against a schema.
    ///
    /// # Errors
    /// [`Error::Config`] for `filter.where`, with the position of the mistake.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(config_error(
                "is empty; write a condition, such as \"aesthetic >= 5\", or leave it out",
            ));
        }
        if text.len() > MAX_BYTES {
            return Err(config_error(format!(
                "is longer than {MAX_BYTES} bytes; put long lists into filter.blocklist"
            )));
        }
        let tokens = Tokenizer::new(&GenericDialect {}, text).tokenize_with_location();
        let tokens = tokens.map_err(|e| config_error(e.to_string()))?;
        if tokens.iter().filter(|token| is_operator(token)).count() > MAX_OPERATORS {
            return Err(config_error(format!(
                "has more than {MAX_OPERATORS} operators; use `in`, or filter.blocklist"
            )));
        }
        let parser = Parser::new(&GenericDialect {}).with_recursion_limit(MAX_NESTING);
        let mut parser = parser.with_tokens_with_locations(tokens);
        let expression = parser.parse_expr().map_err(|e| config_error(e.to_string()))?;
        let rest = parser.peek_token();
        if rest.token != Token::EOF {
            return Err(expression_error(rest.span.start, format!("`{}` is not expected here", rest.token)));
        }
        Ok(Self { root: convert_expression(&expression)? })
    }

    /// Names of the columns in the expression, in the order of the text.
    pub fn column_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        // The visitor never breaks.
        let _ = self.root.visit(&mut |term| {
            if let Node::Column(name) = &term.node {
                names.push(name.clone());
            }
            ControlFlow::Continue(())
        });
        names
    }

    /// Describes the first position of a column, for messages.
    pub fn describe_position(&self, column: &str) -> String {
        let found = self.root.visit(&mut |term| match &term.node {
            Node::Column(name) if name == column => ControlFlow::Break(term.at),
            _ => ControlFlow::Continue(()),
        });
        found.break_value().map_or_else(|| KEY.into(), |at| format!("{KEY} ({})", format_location(at)))
    }
}

impl Term {
    fn visit(&self, visitor: &mut dyn FnMut(&Self) -> ControlFlow<Location>) -> ControlFlow<Location> {
        visitor(self)?;
        match &self.node {
            Node::Negate(one) | Node::Not(one) | Node::IsNull(one) | Node::Like(one, _) => one.visit(visitor),
            Node::Lower(one) | Node::Length(one) => one.visit(visitor),
            Node::Binary(_, left, right) => {
                left.visit(visitor)?;
                right.visit(visitor)
            }
            Node::In(one, list) => {
                one.visit(visitor)?;
                list.iter().try_for_each(|item| item.visit(visitor))
            }
            Node::Column(_) | Node::Number(_) | Node::Text(_) | Node::Boolean(_) | Node::Null => {
                ControlFlow::Continue(())
            }
        }
    }
}

/// Converts a node of the SQL tree.
///
/// # Errors
/// If a filter may not use it.
fn convert_expression(expression: &Expr) -> Result<Term> {
    let at = expression.span().start;
    let boxed = |expression: &Expr| convert_expression(expression).map(Box::new);
    let not = |negated: bool, node: Node| if negated { Node::Not(Box::new(Term { at, node })) } else { node };
    let node = match expression {
        Expr::Nested(inner) => return convert_expression(inner),
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => return convert_expression(expr),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => Node::Negate(boxed(expr)?),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Node::Not(boxed(expr)?),
        Expr::Identifier(name) => Node::Column(name.value.clone()),
        Expr::Value(value) => {
            convert_literal(&value.value).ok_or_else(|| unsupported_expression(at, expression))?
        }
        Expr::BinaryOp { left, op, right } => {
            let operator = convert_operator(op)
                .ok_or_else(|| expression_error(at, format!("the operator `{op}` is not known")))?;
            Node::Binary(operator, boxed(left)?, boxed(right)?)
        }
        Expr::InList { expr, list, negated } => {
            let list = list.iter().map(convert_expression).collect::<Result<_>>()?;
            not(*negated, Node::In(boxed(expr)?, list))
        }
        Expr::Between { expr, negated, low, high } => {
            let side = |operator, bound| {
                Ok::<_, Error>(Box::new(Term {
                    at,
                    node: Node::Binary(operator, boxed(expr)?, boxed(bound)?),
                }))
            };
            let (low, high) = (side(Operator::GreaterOrEqual, low)?, side(Operator::LessOrEqual, high)?);
            not(*negated, Node::Binary(Operator::And, low, high))
        }
        Expr::IsNull(expr) => Node::IsNull(boxed(expr)?),
        Expr::IsNotNull(expr) => not(true, Node::IsNull(boxed(expr)?)),
        Expr::Like { negated, any: false, expr, pattern, escape_char: None } => {
            not(*negated, Node::Like(boxed(expr)?, pattern_text(pattern)?))
        }
        Expr::Function(function) => convert_function(function, at)?,
        _ => return Err(unsupported_expression(at, expression)),
    };
    Ok(Term { at, node })
}

/// True if a token makes the tree deeper: all tokens but names, constants, brackets and commas.
fn is_operator(token: &TokenWithSpan) -> bool {
    match &token.token {
        Token::Word(word) => matches!(word.keyword, Keyword::AND | Keyword::OR | Keyword::NOT),
        Token::Number(..) | Token::SingleQuotedString(_) | Token::Whitespace(_) => false,
        Token::Comma | Token::LParen | Token::RParen => false,
        _ => true,
    }
}

fn convert_literal(value: &Value) -> Option<Node> {
    match value {
        Value::Number(digits, _) => digits.parse().ok().filter(|n: &f64| n.is_finite()).map(Node::Number),
        Value::SingleQuotedString(text) => Some(Node::Text(text.clone())),
        Value::Boolean(value) => Some(Node::Boolean(*value)),
        Value::Null => Some(Node::Null),
        _ => None,
    }
}

fn convert_operator(operator: &BinaryOperator) -> Option<Operator> {
    Some(match operator {
        BinaryOperator::And => Operator::And,
        BinaryOperator::Or => Operator::Or,
        BinaryOperator::Eq => Operator::Equal,
        BinaryOperator::NotEq => Operator::NotEqual,
        BinaryOperator::Lt => Operator::Less,
        BinaryOperator::LtEq => Operator::LessOrEqual,
        BinaryOperator::Gt => Operator::Greater,
        BinaryOperator::GtEq => Operator::GreaterOrEqual,
        BinaryOperator::Plus => Operator::Add,
        BinaryOperator::Minus => Operator::Subtract,
        BinaryOperator::Multiply => Operator::Multiply,
        BinaryOperator::Divide => Operator::Divide,
        _ => return None,
    })
}

/// The text of a `like` pattern: a constant without backslashes, because databases disagree on what
/// a backslash means.
fn pattern_text(pattern: &Expr) -> Result<String> {
    match convert_expression(pattern)? {
        Term { node: Node::Text(text), .. } if !text.contains('\\') => Ok(text),
        Term { at, .. } => {
            Err(expression_error(at, "a pattern is a string in single quotes without backslashes"))
        }
    }
}

fn convert_function(function: &Function, at: Location) -> Result<Node> {
    let name = function.name.to_string().to_ascii_lowercase();
    let node: fn(Box<Term>) -> Node = match name.as_str() {
        "lower" => Node::Lower,
        "length" => Node::Length,
        _ => {
            return Err(expression_error(
                at,
                format!("the function `{name}` is not known; there are lower and length"),
            ));
        }
    };
    let is_plain_call =
        function.over.is_none() && function.filter.is_none() && function.within_group.is_empty();
    match &function.args {
        FunctionArguments::List(list)
            if is_plain_call && list.clauses.is_empty() && list.duplicate_treatment.is_none() =>
        {
            match list.args.as_slice() {
                [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] => {
                    Ok(node(Box::new(convert_expression(argument)?)))
                }
                _ => Err(expression_error(at, format!("{name} takes one string"))),
            }
        }
        _ => Err(expression_error(at, format!("{name} takes one string"))),
    }
}

fn unsupported_expression(at: Location, expression: &Expr) -> Error {
    expression_error(
        at,
        format!(
            "`{expression}` is not supported in a filter; use columns, numbers, 'strings', true, false, null, and, or, \
             not, comparisons, in, between, is null, like, + - * /, lower(), length()"
        ),
    )
}

/// An error at a position of the expression.
pub(crate) fn expression_error(at: Location, problem: impl AsRef<str>) -> Error {
    config_error(format!("{}: {}", format_location(at), problem.as_ref()))
}

fn format_location(at: Location) -> String {
    match at.line {
        0 | 1 => format!("character {}", at.column),
        line => format!("line {line}, character {}", at.column),
    }
}

fn config_error(problem: impl Into<String>) -> Error {
    Error::Config { key: KEY.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_in_every_position() {
        let text =
            "a >= 5 and not (lower(\"b c\") in ('x', d) or e is null) and f between g and 2 or h like '%x'";
        let expression = Expression::parse(text).unwrap();
        assert_eq!(expression.column_names(), ["a", "b c", "d", "e", "f", "g", "f", "h"]);
        assert_eq!(expression.describe_position("b c"), "filter.where (character 23)");
        let lines = Expression::parse("a > 1\nand bad > 2").unwrap();
        assert_eq!(lines.describe_position("bad"), "filter.where (line 2, character 5)");
    }

    #[test]
    fn malformed_expressions_are_refused_with_their_position() {
        let cases = [
            ("", "is empty"),
            ("a >", "found: EOF"),
            ("a > 1 b", "character 7"),
            ("upper(a) = 'X'", "character 1: the function `upper`"),
            ("lower(a, b) = 'x'", "lower takes one string"),
            ("a % 2 = 0", "the operator `%`"),
            ("a in (select 1)", "is not supported in a filter"),
            ("b = 1 and cast(a as int) = 1", "character "),
            ("t.a = 1", "`t.a` is not supported"),
            ("a like b", "character 8: a pattern"),
            ("a like 'x\\_'", "without backslashes"),
            ("a = 'x", "Unterminated"),
        ];
        for (text, expected) in cases {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("filter.where: ") && error.contains(expected), "{text:?}: {error}");
        }
        let long = vec!["a = 1"; 4000].join(" or ");
        assert!(Expression::parse(&long).unwrap_err().to_string().contains("filter.blocklist"));
        for deep in ["not ".repeat(100) + "a", "(".repeat(100) + "a", ["a"; 202].join("+")] {
            assert!(Expression::parse(&deep).is_err(), "{deep}");
        }
        assert!(Expression::parse(&["a = 1"; 100].join(" or ")).is_ok());
        assert!(Expression::parse(&format!("{}a{}", "(".repeat(10), ")".repeat(10))).is_ok());
        assert!(Expression::parse(&format!("a in ({})", ["'word'"; 1000].join(", "))).is_ok());
        assert_eq!(Expression::parse("a == 1").unwrap(), Expression::parse("a =  1").unwrap());
    }
}
