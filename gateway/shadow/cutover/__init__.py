"""Cut-over: moving topics and their groups from the primary to the target, one step at a time, and back.

| module | holds |
|---|---|
| `moves` | the state machine of one move: states, steps, and the sides that follow from them (pure) |
| `move_file` | all moves in one file, replaced at each step |
| `checks`, `held_back` | the conditions of each step, measured on both clusters |
| `mover` | takes a step: checks, work, file, director |
| `director`, `move_traffic` | sends each request to the right side; observes the traffic of moving topics |
| `copy_back`, `group_transfer` | messages that go back to the primary; offsets and locks that follow a group |
| `mode_switch` | switches the mirror mode of a topic, including who leads it |
| `backfill` | copies the history of topics to a target of ours |
| `assembly`, `console_routes`, `settings` | construction, console routes, the table `[cutover]` |
"""
