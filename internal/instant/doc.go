// Package instant restores a directory that can be used at once: all names are there, content is
// fetched when it is read, and everything is restored in the background (decision 66). Afterwards,
// the target is a plain directory.
//
// The files follow a run:
//
//	instant.go  runs the steps
//	place.go    opens the target, and knows what an earlier run left there
//	session.go  shows the snapshot, with what users change above it, and restores it meanwhile
//	wanted.go   lets the restore give way to what users wait for
//	plan.go     plans how what users changed and what was restored become one tree
//	merge.go    makes them one tree, and moves it into the target
//	copy.go     copies the attributes of a directory
//
// # Trees
//
// While a run works, the target contains one directory, which only root can enter:
//
//	.bctl-instant/view      the snapshot, shown by package mount
//	.bctl-instant/upper     what users have changed
//	.bctl-instant/work      needed by overlayfs
//	.bctl-instant/tree      what package restore has restored
//	.bctl-instant/snapshot  which snapshot it is
//	.bctl-instant/plan      how tree and upper become one; nothing is mounted once it is there
//	.bctl-instant/stepped   the plan, renamed when its steps are done and upper has everything
//
// An overlayfs over the target shows upper above view. The kernel copies a file into upper before
// it is changed, and notes there what was deleted or renamed. The restore writes into tree, which
// is not a part of the overlay: what users do and what is restored never meet before the end.
//
// At the end, what upper lacks is moved from tree into upper, and then all of upper into the
// target. Each name in a directory that users have changed takes a rename. Another directory is
// renamed as a whole.
//
// # State after an interruption
//
//	stopped or killed        the target                           run again
//	before the restore ends  only .bctl-instant; files in it are  continues; keeps upper
//	                         whole or absent
//	after the plan           parts of the tree, and .bctl-instant  carries out the plan
//
// A file is never there without its content. After a kill, the mount stays, and what it would have
// to fetch fails with ENOTCONN. The next run unmounts it.
//
// # Confinement (I10)
//
// The overlay and the view never leave their trees. After the unmounting, the run opens directories
// name by name, without following symlinks. Only root can reach the trees then.
package instant
