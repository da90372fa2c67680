import { calls, loading, modelOf, python } from "../calls.js";
import { clear, field, h, later, line, percent, points, table } from "../dom.js";
import { FOLLOWING } from "../examples.js";
import { tools } from "../export.js";
import { textField } from "../parts.js";
import { bars } from "../pictures.js";

export default {
  id: "follow",
  title: "Next sentence",
  group: "Tasks",
  uses: "next-sentence",
  about: "Does the second sentence follow the first? Edit either and watch the probability.",
  show,
};

const [FIRST, SECOND] = FOLLOWING;

function show(root, ctx) {
  const results = h("div", {});
  const tried = [];
  const update = ctx.updating(async (signal) => {
    const inputs = [ctx.get("text", FIRST), ctx.get("pair", SECOND)];
    const [{ next_sentence_probability: chance }] = await ctx.post(
      "/next-sentence",
      { inputs },
      signal,
    );
    if (tried[0]?.inputs.join("\n") !== inputs.join("\n")) tried.unshift({ inputs, chance });
    const before = tried[1];
    const swapped = h(
      "button",
      {
        type: "button",
        onclick: () => {
          ctx.set({ text: inputs[1], pair: inputs[0] });
          for (const [at, control] of [...form.querySelectorAll("textarea, input")].entries())
            control.value = inputs[1 - at];
          update();
        },
      },
      "Swap",
    );
    clear(
      results,
      h(
        "div",
        { class: "card" },
        h("h2", { class: "h3" }, "Does it follow?"),
        bars(
          [
            { text: "next sentence", value: chance },
            { text: "random sentence", value: 1 - chance },
          ],
          { max: 1, caption: "Next sentence" },
        ),
        h("div", { class: "tools" }, swapped),
      ),
      tried.length > 1 && [
        h("h2", {}, "As you edit"),
        table(
          [
            "First",
            "Second",
            { text: "Probability", number: true },
            { text: "Change", number: true },
          ],
          tried
            .slice(0, 12)
            .map((one, at) => [
              one.inputs[0],
              one.inputs[1],
              percent(one.chance),
              tried[at + 1] ? points(one.chance - tried[at + 1].chance) : "",
            ]),
          { caption: "Edits, latest first" },
        ),
        tools("next-sentence", {
          csv: () => [
            ["first", "second", "probability"],
            ...tried.map((one) => [...one.inputs, one.chance]),
          ],
        }),
      ],
      calls(ctx, {
        path: "/next-sentence",
        body: { inputs },
        python: `${loading(ctx)}model.next_sentence(${inputs.map(python).join(", ")})`,
        verb: "next-sentence",
        given: [modelOf(ctx), ...inputs],
      }),
    );
    const difference = before
      ? `, ${points(chance - before.chance)} compared with the previous edit`
      : "";
    return `It follows with probability ${percent(chance)}${difference}.`;
  });
  const form = h(
    "div",
    { class: "form" },
    textField(ctx, update, { label: "First sentence", fallback: FIRST }),
    field(
      "Second sentence",
      line(
        ctx.get("pair", SECOND),
        later((pair) => {
          ctx.set({ pair });
          update();
        }, 300),
      ),
    ),
  );
  root.append(form, ctx.status, results);
  update();
}
