package backup

import "fmt"

// A SettingError is an invalid value of one setting of a filer, a shard or a policy.
type SettingError struct {
	// Setting is the name of the setting as in the file of bctl apply. The names of groups and the
	// indexes of items precede it: "schedule", "keep/daily", "windows/2".
	Setting string
	Err     error // the whole text; wraps ErrInvalid
}

func (e *SettingError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *SettingError) Unwrap() error { return e.Err }

// WrongSetting returns a SettingError that wraps ErrInvalid, with a formatted reason.
func WrongSetting(setting, format string, args ...any) error {
	return &SettingError{Setting: setting, Err: fmt.Errorf(format+": %w", append(args, ErrInvalid)...)}
}
