//! The HTML. `report.js` draws the charts with uPlot (vendored, MIT); `report.css` has the two colour
//! schemes.

use crate::report::Report;

const HTML: &str = include_str!("report.html");
const CSS: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");
const CHART_CSS: &str = include_str!("vendor/uPlot.min.css");
const CHART_SCRIPT: &str = include_str!("vendor/uPlot.iife.min.js");

/// The page as one HTML file.
pub fn render(report: &Report) -> String {
    // Inside <script> only "</" could end the element early; "<" is the same text in JSON.
    let data = serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c");
    // Each placeholder once, in the order of the page: what is inserted is not searched again.
    let parts = [
        ("{{title}}", escape(&report.title)),
        ("{{chart-css}}", CHART_CSS.to_owned()),
        ("{{css}}", CSS.to_owned()),
        ("{{data}}", data),
        ("{{chart-script}}", CHART_SCRIPT.to_owned()),
        ("{{script}}", SCRIPT.to_owned()),
    ];
    let (mut page, mut rest) = (String::new(), HTML);
    for (placeholder, text) in parts {
        let (before, after) = rest.split_once(placeholder).unwrap_or((rest, ""));
        page += before;
        page += &text;
        rest = after;
    }
    page + rest
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunReport;

    #[test]
    fn texts_cannot_end_the_script_or_fill_placeholders() {
        let name = "</script><script>alert(1)</script> {{script}}".to_owned();
        let run = RunReport { name: name.clone(), ..RunReport::default() };
        let page = render(&Report { title: name, runs: vec![run], ..Report::default() });
        assert_eq!(page.matches("</script>").count(), HTML.matches("</script>").count());
        assert_eq!(page.matches("{{script}}").count(), 3, "all come from the name");
        assert!(page.contains("<title>&lt;/script>"), "{}", &page[..300]);
        assert!(!page.contains("src=\"http") && !page.contains("@import"));
    }
}
