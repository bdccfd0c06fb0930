package check

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// A parityObject is an object of a parity group.
type parityObject struct {
	group  *parity.Group
	number int
	size   int64 // absent: the list does not have it
	// suspect: a scrub has found one of the group's objects damaged.
	suspect bool
}

func (o *parityObject) name() string { return o.group.Name(o.number) }

// loadParity reads the parity groups of the index.
func (c *checker) loadParity(ctx context.Context) error {
	for row, err := range c.Index.ParityGroups(ctx) {
		if err != nil {
			return err
		}
		if row.State != index.ParityValid {
			continue
		}
		g, _, err := parity.Parse(row.Description)
		if err != nil || g.ID != row.ID || g.Repository != c.Repository.ID {
			c.find(&Finding{Kind: Parity, Text: "the row of parity group " + row.ID.String() + " is damaged"})
			continue
		}
		c.groups[g.ID] = &g
		for n := range g.Bodies {
			if c.Only != nil {
				break
			}
			c.parity = append(c.parity, parityObject{&g, n, absent, row.Suspect})
		}
	}
	return nil
}

// parityCost returns what checking a parity object takes.
func (c *checker) parityCost(o *parityObject) (requests int, bytes int64) {
	if o.size == absent {
		return 0, 0
	}
	if c.readsParity(o) {
		return o.group.CheckCost(o.number)
	}
	return 1, parity.DescriptionBytes(len(o.group.Members), len(o.group.Bodies))
}

// readsParity reports whether the whole of a parity object is read.
func (c *checker) readsParity(o *parityObject) bool {
	return o.suspect || c.Level >= Content && (c.Read == nil || c.Read(o.group.ID))
}

// checkParity checks the parity objects: that they are there, have their length and their
// description, and, as far as content is read, their digest.
func (c *checker) checkParity(ctx context.Context) error {
	c.report.Parity = int64(len(c.parity))
	return each(ctx, len(c.parity), min(objectsAtATime, c.Workers), func(ctx context.Context, i int) error {
		o := &c.parity[i]
		text, err := c.checkParityObject(ctx, o)
		if err != nil || text == "" {
			return err
		}
		for row, err := range c.Index.ParityGroups(ctx) { // a pruner may have replaced the group
			if err != nil {
				return err
			}
			if row.ID == o.group.ID && row.State == index.ParityValid {
				c.find(&Finding{Kind: Parity, Object: o.name(), Text: text})
			}
		}
		return nil
	})
}

// checkParityObject describes what is wrong with a parity object; empty: nothing is.
func (c *checker) checkParityObject(ctx context.Context, o *parityObject) (text string, err error) {
	name := o.name()
	if o.size != o.group.ObjectBytes() {
		return sizeText(o.size, o.group.ObjectBytes()), nil
	}
	if c.readsParity(o) {
		err = o.group.Check(ctx, c.Store, name)
	} else {
		var data []byte
		data, err = c.Store.GetRange(ctx, nil, name, 0, parity.DescriptionBytes(len(o.group.Members), len(o.group.Bodies)))
		if err == nil {
			err = o.group.CheckDescription(data, o.number)
		}
	}
	if err != nil && !fatal(err) {
		return err.Error(), nil
	}
	return "", err
}

// recoverable marks the findings whose damage parity can undo, as far as this check has looked.
func (c *checker) recoverable() {
	damaged := map[string]bool{}
	for _, f := range c.report.Findings {
		damaged[f.Object] = damaged[f.Object] || f.Kind == Pack || f.Kind == Parity
	}
	back := map[string]bool{}
	for _, g := range c.groups {
		var lost []string
		for _, name := range g.Names() {
			if damaged[name] {
				lost = append(lost, name)
			}
		}
		for _, name := range lost {
			back[name] = back[name] || len(lost) <= len(g.Bodies)
		}
	}
	for _, f := range c.report.Findings {
		f.FromParity = (f.Kind == Pack || f.Kind == Parity) && back[f.Object]
	}
}

// parityOf returns the position in c.parity of each parity object, by group.
func (c *checker) parityOf() map[backup.PackID]int {
	at := map[backup.PackID]int{}
	for i := range c.parity {
		if c.parity[i].number == 0 {
			at[c.parity[i].group.ID] = i
		}
	}
	return at
}

// lookForParity notes the sizes of the parity objects in the list of the store.
func (c *checker) lookForParity(at map[backup.PackID]int, o *store.Object) {
	group, number, ok := store.ParseParityName(o.Name)
	if first, known := at[group]; ok && known && number < len(c.groups[group].Bodies) {
		c.parity[first+number].size = o.SizeBytes
	}
}
