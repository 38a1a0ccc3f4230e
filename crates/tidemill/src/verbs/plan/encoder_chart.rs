//! Throughput and cost online by the number of nodes that encode, beside the other modes.

use tidemill_plan::Plan;
use tidemill_plan::modes::{CurvePoint, EncoderCurve, Mode};
use tidemill_train::image_grid::encode_png;

use crate::chart::lines::{self, Series};

/// The chart of a plan as SVG. None without nodes that only encode.
pub fn draw_encoder_chart(plan: &Plan) -> Option<String> {
    plan.encoder_curve.as_ref().map(|curve| draw_svg(plan, curve))
}

/// The chart as SVG.
pub fn draw_svg(plan: &Plan, curve: &EncoderCurve) -> String {
    lines::draw_svg(&panels(plan, curve))
}

/// The chart as a PNG file.
///
/// # Errors
/// If it cannot be encoded.
pub fn draw_png(plan: &Plan, curve: &EncoderCurve) -> image::ImageResult<Vec<u8>> {
    encode_png(&lines::draw_png(&panels(plan, curve)))
}

fn panels(plan: &Plan, curve: &EncoderCurve) -> Vec<Series> {
    let others = [Mode::Offline, Mode::Colocated].into_iter().filter_map(|mode| {
        let planned = plan.modes.get(&mode)?;
        let phase =
            planned.phases.iter().find(|phase| phase.resolution == curve.resolution && phase.samples > 0)?;
        let before = planned.preprocess.map_or(0.0, |preprocess| preprocess.cost);
        // Encoding before training counts in proportion to the images.
        let samples: f64 = planned.phases.iter().map(|phase| phase.samples as f64).sum();
        let per_million = 1e6 * (phase.cost / phase.samples as f64 + before / samples);
        Some((mode.name().to_owned(), phase.images_per_second, per_million))
    });
    let others: Vec<(String, f64, f64)> = others.collect();
    let cheapest = curve.points.iter().map(|point| point.cost_per_million).fold(f64::INFINITY, f64::min);
    let line = |y: fn(&CurvePoint) -> f64, shown: &dyn Fn(&CurvePoint) -> bool| {
        curve.points.iter().filter(|point| shown(point)).map(|point| (point.nodes as f64, y(point))).collect()
    };
    // Very few encoders cost so much that nothing else could be told apart.
    let is_near = |point: &CurvePoint| point.cost_per_million < 3.0 * cheapest;
    let x_name = format!("{} that encode", curve.node);
    let panel = |name: String, points, levels| Series { name, x_name: x_name.clone(), points, levels };
    let rates = others.iter().map(|(name, rate, _)| (name.clone(), *rate)).collect();
    let costs = others.iter().map(|(name, _, cost)| (name.clone(), *cost)).collect();
    vec![
        panel(
            format!("online, {} px: images/s", curve.resolution),
            line(|point| point.images_per_second, &|_| true),
            rates,
        ),
        panel("dollars per million images".into(), line(|point| point.cost_per_million, &is_near), costs),
    ]
}
