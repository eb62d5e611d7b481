"use strict";

// Draws the charts of the dashboard. The numbers are JSON in the page, the colours come from the style sheet.
{
    const HEIGHT = 220;

    const language = document.documentElement.lang || "en";
    const EXACT = { weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", timeZoneName: "short" };

    function seconds(value, units) {
        if (value === null) return "-";
        if (value === 0) return "0";
        const [divisor, unit] = value < 1 ? [0.001, 0] : value < 60 ? [1, 1] : value < 3600 ? [60, 2] : [3600, 3];
        return `${Number((value / divisor).toPrecision(3)).toLocaleString(language)} ${units[unit]}`;
    }

    function count(value) {
        return value === null ? "-" : value.toLocaleString(language);
    }

    const colorOf = (element) => getComputedStyle(element).color;

    function axis(plot, size, values) {
        return {
            stroke: () => colorOf(plot),
            grid: { stroke: () => getComputedStyle(plot).getPropertyValue("--hairline-color"), width: 1 },
            ticks: { show: false },
            font: "11px sans-serif",
            size,
            ...values,
        };
    }

    // The numbers of the points that no line touches, as there is no value on either side.
    function isolated(plot, number) {
        const values = plot.data[number], is = (at) => values[at] !== null && values[at] !== undefined;
        return values.flatMap((_, at) => is(at) && !is(at - 1) && !is(at + 1) ? [at] : []);
    }

    function seriesOf(series, swatch, bars) {
        const color = () => colorOf(swatch);
        const drawn = { label: series.label, stroke: color, width: 2, points: { show: true, size: 6, fill: color, filter: isolated } };
        return bars ? { ...drawn, points: { show: false }, width: 0, fill: color, paths: uPlot.paths.bars({ size: [0.8, 20] }) } : drawn;
    }

    // Labels of the time axis: the time of day, at midnight the date.
    function clock(zone) {
        const time = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: zone });
        const day = new Intl.DateTimeFormat(language, { weekday: "short", day: "numeric", timeZone: zone });
        return (_, ticks) => ticks.map((tick) => {
            const [hour, minute] = time.formatToParts(tick * 1000).filter(({ type }) => type !== "literal").map(({ value }) => Number(value));
            const text = time.format(tick * 1000);
            return !hour && !minute ? day.format(tick * 1000) : text;
        });
    }

    const WHOLE = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

    // The legend shows the time and the numbers under the pointer.
    function legend(element, figure, swatches, texts) {
        const time = new Intl.DateTimeFormat(language, { ...EXACT, hourCycle: "h23", timeZone: figure.zone });
        const clock = element.querySelector(".dq-time");
        return ({ cursor: { idx }, data }) => {
            const outside = idx === null || idx === undefined;
            clock.textContent = outside ? "" : time.format(data[0][idx] * 1000);
            swatches.forEach((swatch, number) => {
                swatch.querySelector("b").textContent = outside ? "" : texts[number](data[number + 1][idx]);
            });
        };
    }

    const dataOf = (figure) => [figure.times, ...figure.series.map((series) => series.values)];

    function draw(figure) {
        const element = document.getElementById(figure.name);
        const plot = element.querySelector(".dq-plot");
        const swatches = [...element.querySelectorAll(".dq-legend [class^=dq-series]")];
        const texts = figure.series.map((series) => (series.unit ? (value) => seconds(value, figure.units) : count));
        const options = {
            width: plot.clientWidth,
            height: HEIGHT,
            legend: { show: false },
            cursor: { drag: { x: false, y: false }, y: false },
            tzDate: (timestamp) => uPlot.tzDate(new Date(timestamp * 1000), figure.zone),
            scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
            axes: [
                axis(plot, 28, { space: 60, values: clock(figure.zone) }),
                axis(plot, 62, {
                    values: (_, ticks) => ticks.map(texts[0]),
                    incrs: figure.series[0].unit ? undefined : WHOLE,
                }),
            ],
            series: [{}, ...figure.series.map((series, number) => seriesOf(series, swatches[number], figure.bars))],
            hooks: { setCursor: [legend(element, figure, swatches, texts)] },
        };
        const drawn = new uPlot(options, dataOf(figure), plot);
        new ResizeObserver(() => drawn.setSize({ width: plot.clientWidth, height: HEIGHT })).observe(plot);
        return drawn;
    }

    const figuresIn = (page) => JSON.parse(page.getElementById("dq-figures").textContent);
    const plots = figuresIn(document).map(draw);
    const redraw = () => plots.forEach((plot) => plot.redraw(false, true));
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.addEventListener("dq-refreshed", ({ detail }) => {
        figuresIn(detail).forEach((figure, number) => plots[number].setData(dataOf(figure)));
    });
}
