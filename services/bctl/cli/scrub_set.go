package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/index"
)

func newScrubSet(a *app) *cobra.Command {
	var to index.ScrubSettings
	var requests int
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change within which time all packs are proven",
		Long: `Changes the settings that are given. They hold for the repository, because
snapshots of all shards share packs. bctl log shows who did it.

Each pack is read with one request. What a day's limits leave unread is read on
the next days, the oldest proof first.

With the prices of your store, --max-cost limits what a day may cost, and bctl
scrub show shows what today has cost. Prices are in any currency. A cost is not
rounded: reading ends before the amount is exceeded.`,
		Example: `  bctl scrub set --proven-within 30d
  bctl scrub set --max-bytes 1TB --max-requests 50000
  bctl scrub set --price-per-1000-requests 0.0004 --price-per-gib 0.09 \
      --max-cost 2.50`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().NFlag() == 0 {
				return usage("give at least one setting, such as --proven-within 30d")
			}
			return a.withIndex(cmd.Context(), toWrite, func(i index.Index) error {
				s, err := i.Scrub(cmd.Context())
				if err != nil {
					return err
				}
				given := cmd.Flags().Changed
				setIf(given("proven-within"), &s.Within, to.Within)
				setIf(given("max-bytes"), &s.PerDay.Bytes, to.PerDay.Bytes)
				setIf(given("max-requests"), &s.PerDay.Requests, int64(requests))
				setIf(given("price-per-1000-requests"), &s.Prices.Requests, to.Prices.Requests)
				setIf(given("price-per-gib"), &s.Prices.Bytes, to.Prices.Bytes)
				setIf(given("max-cost"), &s.Spend, to.Spend)
				if err = i.SetScrub(cmd.Context(), s.ScrubSettings, operator()); err != nil {
					return wrongSetting(err)
				}
				return a.showScrub(cmd.Context(), i)
			})
		},
	}
	timeFlag(cmd.Flags(), &to.Within, "proven-within", "prove all packs within this `TIME` (default 30d)")
	sizeFlag(cmd.Flags(), &to.PerDay.Bytes, "max-bytes", "read at most this `SIZE` a day; 0: no limit (default)")
	numberFlag(cmd.Flags(), &requests, "max-requests", 0, 0, most, "make at most this `NUMBER` of requests a day; 0: no limit")
	moneyFlag(cmd.Flags(), &to.Prices.Requests, "price-per-1000-requests", "`PRICE` of 1,000 requests that read")
	moneyFlag(cmd.Flags(), &to.Prices.Bytes, "price-per-gib", "`PRICE` of reading 2³⁰ bytes")
	moneyFlag(cmd.Flags(), &to.Spend, "max-cost", "spend at most this `AMOUNT` a day; 0: no limit (default)")
	return cmd
}

// moneyFlag adds a flag of an amount of money.
func moneyFlag(flags *pflag.FlagSet, to *index.Money, name, usage string) {
	flags.Var(&parsed[index.Money]{to, "", "string", func(text string) (index.Money, error) {
		amount, err := index.ParseMoney(text)
		if err != nil {
			return 0, wrongValue("is not an amount from 0 to %s, with at most nine digits after the point (0.0004)", index.MaxMoney)
		}
		return amount, nil
	}}, name, usage)
}

// costRows describes what scrubbing costs, if prices are known.
func costRows(s *index.Scrub, row rowFunc) {
	if s.Prices == (index.ScrubPrices{}) {
		return
	}
	row("prices", "%s for 1,000 requests, %s for 1 GiB", s.Prices.Requests, s.Prices.Bytes)
	limit := "no limit"
	if s.Spend > 0 {
		limit = "of at most " + s.Spend.String()
	}
	row("cost today", "%s (%s)", s.Prices.Cost(s.Today), limit)
	row("cost of all", "%s, to prove all packs and parity once", s.Prices.Cost(s.All()))
}
